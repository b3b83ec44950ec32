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
