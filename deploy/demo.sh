#!/usr/bin/env bash
# Sets up what is missing, then shows the pipeline on real data: `cdc demo`, with its options.
set -euo pipefail
cd "$(dirname "$0")/.."
./deploy/setup.sh
exec .venv/bin/cdc demo "$@"
