# Builds Go programs from pinned modules into a cache; to be sourced by a `setup` beside go.mod files.

# shellcheck source=tests/lab/cache.sh
. "$(dirname "${BASH_SOURCE[0]}")/cache.sh"

# cache_of NAME FILE...: the directory for what those files pin; nobody else builds into it meanwhile.
cache_of() {
    local name=$1 pinned
    shift
    pinned=$(cat "$@" "${BASH_SOURCE[0]}" | sha256sum | cut -c 1-16)
    cache=$(lab_cache)/$name-$pinned
    mkdir -p "$cache"
    # One at a time: two builds of the same would take twice as long.
    exec 9> "$cache/lock"
    flock 9
}

# build DIRECTORY PROGRAM PACKAGE [MODULE VARIABLE]: by the go.mod in DIRECTORY. The program says that it is of the version
# of MODULE, by what its build puts into VARIABLE.
build() {
    local directory=$1 program=$2 package=$3 module=${4:-} variable=${5:-} flags='-s -w'
    [ ! -x "$cache/$program" ] || return 0
    echo "${0##*/lab/}: building $program" >&2
    if [ -n "$module" ]; then
        flags="$flags -X $variable=$(cd "$directory" && go list -mod=readonly -m -f '{{.Version}}' "$module")"
    fi
    (cd "$directory" && CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags "$flags" -o "$cache/$program.new" "$package" >&2)
    mv "$cache/$program.new" "$cache/$program"
}
