"""The command line: one file per command, heavy imports inside functions only."""
