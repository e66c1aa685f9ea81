#!/usr/bin/env bash
# Sets up what is missing, then shows the pipeline on real data: `cdc demo`, with its options.
set -euo pipefail
cd "$(dirname "$0")/.."
./deploy/setup.sh
# Many processes are started: none of them should compile our code again.
unset PYTHONDONTWRITEBYTECODE
exec .venv/bin/cdc demo "$@"
