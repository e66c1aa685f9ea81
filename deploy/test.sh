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

tests_of() {
    .venv/bin/pytest "$@" "${options[@]}"
    selected $?
}

faults_end() {
    wait "$faults"
    local code=$?
    cat "$faults_log"
    selected $code
}

# Options such as -k may leave nothing of one of the two runs, which pytest takes for a failure.
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
# The fault tests have servers of their own, which they kill, and mostly wait: they run beside the
# others. Those are one process, so that one Postgres, one broker and one Spark session serve all.
faults_log=$(mktemp)
.venv/bin/pytest tests/faults "$@" >"$faults_log" 2>&1 &
faults=$!
trap 'kill "$faults" 2>/dev/null; rm -f "$faults_log"' EXIT
stage pytest tests_of tests/unit tests/properties tests/integration
stage faults faults_end
summary
