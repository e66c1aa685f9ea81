"""The source-side cases: small scenarios on a real Postgres, run through the whole pipeline."""
