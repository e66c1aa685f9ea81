#!/usr/bin/env bash
# Sets up what is missing, then checks everything: ./deploy/test.sh [--full] [pytest options]
#   --full   also the long fault and soak runs
# Every stage runs even after one failed; the end tells which, and the exit code is then 1.
set -uo pipefail
cd "$(dirname "$0")/.."
# Many processes are started: none of them should compile our code again.
unset PYTHONDONTWRITEBYTECODE

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

# Starts a run of pytest in the background: beside NAME pytest-arguments…
beside() {
    local name=$1
    shift
    .venv/bin/pytest "$@" "${options[@]}" >"$logs/$name" 2>&1 &
    running[$name]=$!
}

# Waits for a run in the background, and shows what it said.
end_of() {
    wait "${running[$1]}"
    local code=$?
    cat "$logs/$1"
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

clean_up() {
    for process in "${running[@]}"; do
        kill "$process" 2>/dev/null
    done
    rm -rf "$logs"
}

declare -A running
logs=$(mktemp -d)
trap clean_up EXIT
options=("$@")

# Nothing of the rest can run without it.
./deploy/setup.sh || exit $?
stages+=("$(printf '%-14s %5d s  ok' setup "$SECONDS")")

# Alone, these tests wait half of the time, so five runs share the machine: what is mostly Spark's work;
# loads; the other parts on their servers; units, and whole pipelines as processes; last, what is
# killed, the servers themselves, properties, and kinds of tables. Each run has one Postgres, one broker and one
# Spark session for all its tests that need no more than that. The longest begin first.
beside spark tests -m spark
stage lint .venv/bin/ruff check .
stage format .venv/bin/ruff format --check .
stage types .venv/bin/mypy
beside loads tests/loads -m 'not spark'
beside parts tests/integration -m 'not spark'
beside faults tests/faults tests/servers tests/properties tests/tables -m 'not spark'
stage pipelines here tests/unit tests/pipeline -m 'not spark'
for run in loads parts faults spark; do
    stage "$run" end_of "$run"
done
summary
