#!/usr/bin/env bash
# Everything that this project needs, set up where it is missing; a second run only looks.
#   .venv in the project root        packages from deploy/lock, hashes checked
#   ${XDG_CACHE_HOME:-~/.cache}/cdc  wheels that are built once, jars, the packaged Postgres
#   Java 17 or newer                 the one of the machine, else by apt as root
# Ends with 3, saying what to install, where it cannot help itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cdc
venv=$root/.venv
stamp=$venv/.cdc-setup

say() { printf 'setup: %s\n' "$*" >&2; }
fail() {
    printf 'setup: %s\n  remedy: %s\n' "$1" "$2" >&2
    exit 3
}

find_python() {
    local name
    for name in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
            2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    fail "no Python 3.11 or newer with venv" \
        "install it (Debian, Ubuntu: apt-get install python3 python3-venv) or set PYTHON"
}

find_java() {
    if [[ -n ${JAVA_HOME:-} ]]; then
        command -v "$JAVA_HOME/bin/java"
    else
        command -v java
    fi
}

# Spark needs this module, and asking for it says the version as well.
java_version() {
    "$1" --add-modules=jdk.incubator.vector -version 2>&1 |
        sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1
}

java_fits() {
    local java version
    java=$(find_java) || return 1
    version=$(java_version "$java")
    [[ -n $version && $version -ge 17 ]]
}

ensure_java() {
    local package packages='openjdk-17-jre-headless openjdk-21-jre-headless openjdk-25-jre-headless'
    java_fits && return
    if [[ $EUID -eq 0 && -z ${JAVA_HOME:-} ]] && command -v apt-get >/dev/null; then
        say "installing Java"
        apt-get update -qq >&2 || true
        for package in $packages; do
            if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
                "$package" >/dev/null 2>&1 && java_fits; then
                return
            fi
        done
    fi
    fail "no Java 17 or newer with the module jdk.incubator.vector in ${JAVA_HOME:-PATH}" \
        "install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
}

# What an installed environment depends on: when it changes, the environment is brought up to it.
fingerprint() {
    {
        printf '%s\n' "$root"
        cat deploy/setup.sh deploy/lock/*.txt deploy/jars/*/ivy.xml deploy/jars/*/jars.sha256 \
            pyproject.toml
        "$venv/bin/python" -c 'import sys; print(sys.version)'
    } | sha256sum | cut -d' ' -f1
}

# The stamp: the fingerprint, then every folder of the cache that has to be there.
up_to_date() {
    local line lines
    [[ -x $venv/bin/python && -r $stamp ]] || return 1
    mapfile -t lines <"$stamp"
    [[ ${lines[0]:-} == "$(fingerprint)" ]] || return 1
    for line in "${lines[@]:1}"; do
        [[ -d $line ]] || return 1
    done
}

# Wheels of the packages that exist only as source, built once for all environments.
build_wheels() {
    local folder=$1
    mkdir -p "${folder%/*}"
    exec 8>"${folder%/*}/.lock"
    flock 8
    if [[ -d $folder ]] && (cd "$folder" && sha256sum --quiet --check SHA256SUMS >&2); then
        flock -u 8
        return
    fi
    say "building wheels from source: $(grep -oE '^[a-z0-9-]+==[^ ]+' deploy/lock/sdists.txt |
        tr '\n' ' ')(once, about a minute)"
    rm -rf "$folder" "$folder.new"
    mkdir "$folder.new"
    # Twice quiet: older pips warn here of a change that does not concern us.
    "$venv/bin/pip" wheel -qq --no-deps --no-build-isolation --no-binary :all: \
        --require-hashes --wheel-dir "$folder.new" --requirement deploy/lock/sdists.txt >&2
    (cd "$folder.new" && sha256sum -- *.whl >SHA256SUMS)
    mv "$folder.new" "$folder"
    flock -u 8
}

# Every process imports much of them. pip would compile one file after the other, and Python
# itself may have been told not to keep what it compiles. Nothing imports what is left out.
compile_packages() {
    "$venv/bin/python" -m compileall -qq -j 0 \
        -x 'site-packages/(pip|setuptools|pyspark/(pandas|ml|mllib|examples))/' "$@" >&2 ||
        say "some packages stay uncompiled"
}

main() {
    local python wheels start=$SECONDS
    # One at a time on this project; the folder itself is the lock.
    exec 9<"$root"
    flock 9
    ensure_java
    if up_to_date; then
        return
    fi
    if ! [[ -x $venv/bin/python ]] || ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        python=$(find_python)
        say "creating .venv with $python"
        "$python" -m venv "$venv"
    fi
    say "installing packages"
    "$venv/bin/pip" install --quiet --no-compile --no-deps --only-binary :all: --require-hashes \
        --requirement deploy/lock/wheels.txt >&2
    compile_packages "$venv/lib" &
    wheels=$cache/wheels/$(sha256sum deploy/lock/sdists.txt | cut -c1-16)
    build_wheels "$wheels"
    "$venv/bin/pip" install --quiet --no-compile --no-deps --no-index "$wheels"/*.whl >&2
    # In compat mode the project is on the path like any folder, without an import hook.
    "$venv/bin/pip" install --quiet --no-compile --no-deps --no-index --no-build-isolation \
        --config-settings editable_mode=compat --editable . >&2
    wait $!
    compile_packages "$venv"/lib/python*/site-packages/pyspark
    "$venv/bin/python" -m deploy.jars.fetch broker spark >&2
    "$venv/bin/python" -m deploy.local.binaries >&2
    {
        fingerprint
        "$venv/bin/python" -m deploy.jars broker spark
    } >"$stamp.new"
    mv "$stamp.new" "$stamp"
    say "ready in $((SECONDS - start)) s"
}

main "$@"
