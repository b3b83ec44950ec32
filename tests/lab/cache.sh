# Where the labs keep what they fetch and build, outside the checkout, so that the next clone finds it; to be sourced.

# lab_cache: prints the directory, made where it was missing. DRUMLIN_CACHE names another one.
lab_cache() {
    local cache=${DRUMLIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drumlin}
    mkdir -p "$cache"
    printf '%s\n' "$cache"
}

# debian_mirror: prints the mirror that this machine's own packages come from; DEBIAN_MIRROR names another one.
debian_mirror() {
    local mirror=${DEBIAN_MIRROR:-}
    if [ -z "$mirror" ]; then
        mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2> /dev/null \
            | grep -oE 'https?://[^ ]+' | grep -E '/debian/?$' | head -n 1 || true)
    fi
    printf '%s\n' "${mirror:-http://deb.debian.org/debian}"
}

# How Go compiles what only tests run: with half of the time that it takes with optimization. What an API server and kubectl
# spend most of their time in is optimized nevertheless: they need half of the time then, and there are hundreds of them.
go_flags=(-gcflags 'all=-N -l -dwarf=false')
for hot in std sigs.k8s.io/... k8s.io/apimachinery/... k8s.io/kube-openapi/...; do
    go_flags+=(-gcflags "$hot=-dwarf=false")
done

# quick_go build|test ARGUMENT...: compiles so, without C where CGO_ENABLED says nothing else. The compiler collects no garbage below two gibibytes, a sixth of its time.
quick_go() {
    local verb=$1
    shift
    CGO_ENABLED=${CGO_ENABLED:-0} GOGC=off GOMEMLIMIT=2GiB go "$verb" -mod=readonly -trimpath "${go_flags[@]}" "$@" >&2
}

# lab_once CACHE PROGRAM COMMAND...: runs the command, which makes PROGRAM.new in the cache, unless PROGRAM is there already;
# at a time one of all that want it.
lab_once() {
    local cache=$1 program=$2
    shift 2
    [ ! -e "$cache/$program" ] || return 0
    exec 9> "$cache/$program.lock"
    # What waits in silence is taken for what hangs.
    until flock --timeout 60 9; do
        echo "somebody else builds $program" >&2
    done
    [ ! -e "$cache/$program" ] || return 0
    rm -rf "$cache/$program.new"
    "$@"
    mv "$cache/$program.new" "$cache/$program"
}
