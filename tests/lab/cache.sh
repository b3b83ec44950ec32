# Where the labs keep what they fetch and build, outside the checkout, so that the next clone finds it; to be sourced.

# lab_cache: prints the directory, made where it was missing. DRUMLIN_CACHE names another one.
lab_cache() {
    local cache=${DRUMLIN_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/drumlin}
    mkdir -p "$cache"
    printf '%s\n' "$cache"
}
