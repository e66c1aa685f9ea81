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

# Waits for the run in the background, and shows what it said.
behind() {
    wait "$background"
    local code=$?
    cat "$log"
    selected $code
}

here() {
    .venv/bin/pytest "$@" "${options[@]}"
    selected $?
}

# Options such as -k may leave nothing of one of the runs, which pytest takes for a failure.
selected() {
    [[ $1 -eq 0 || ($1 -eq 5 && ${#options[@]} -gt 0) ]]
}

options=("$@")

# Nothing of the rest can run without it.
./deploy/setup.sh || exit $?
stages+=("$(printf '%-14s %5d s  ok' setup "$SECONDS")")

stage lint .venv/bin/ruff check .
stage format .venv/bin/ruff format --check .
stage types .venv/bin/mypy
# Most of these tests wait most of the time, so two runs share the machine. Each has one Postgres,
# one broker and one Spark session for all tests that need no more than that.
log=$(mktemp)
.venv/bin/pytest tests/pipeline tests/faults "${options[@]}" >"$log" 2>&1 &
background=$!
trap 'kill "$background" 2>/dev/null; rm -f "$log"' EXIT
stage tests here tests/unit tests/properties tests/integration
stage pipelines behind
summary
