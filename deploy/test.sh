#!/usr/bin/env bash
# Sets up what is missing, then checks everything: ./deploy/test.sh [--full] [pytest options]
#   --full   also the long fault and soak runs
# Every stage runs even after one failed; the end tells which, and the exit code is then 1.
set -uo pipefail
cd "$(dirname "$0")/.."

failed=()
stages=()

stage() {
    local name=$1 start=$SECONDS outcome=ok
    shift
    printf '== %s\n' "$name"
    if ! "$@"; then
        outcome=FAILED
        failed+=("$name")
    fi
    stages+=("$(printf '%-14s %5d s  %s' "$name" $((SECONDS - start)) "$outcome")")
}

summary() {
    printf '== stages (%d s in all; those of pytest are in its own summary)\n' "$SECONDS"
    printf '%s\n' "${stages[@]}"
    if [[ ${#failed[@]} -gt 0 ]]; then
        printf 'FAILED: %s\n' "${failed[*]}"
        exit 1
    fi
    printf 'all passed\n'
}

# Nothing of the rest can run without it.
./deploy/setup.sh || exit $?
stages+=("$(printf '%-14s %5d s  ok' setup "$SECONDS")")

stage lint .venv/bin/ruff check .
stage format .venv/bin/ruff format --check .
stage types .venv/bin/mypy
# One process, so that one Postgres, one broker and one Spark session serve all of it.
stage pytest .venv/bin/pytest tests/unit tests/properties tests/integration tests/faults "$@"
summary
