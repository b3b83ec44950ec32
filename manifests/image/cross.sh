# What builds for an architecture, by Debian's name of it (amd64 or arm64), on a Debian of either; to be sourced.

# look_up_architecture ARCHITECTURE: sets gnu and target, as GCC and as Rust call it.
look_up_architecture() {
    case $1 in
        amd64) gnu=x86_64-linux-gnu target=x86_64-unknown-linux-gnu ;;
        arm64) gnu=aarch64-linux-gnu target=aarch64-unknown-linux-gnu ;;
        *)
            echo "image: the architecture is amd64 or arm64, not \"$1\"" >&2
            return 2
            ;;
    esac
}

# is_own ARCHITECTURE: whether this machine is of it.
is_own() {
    [ "$1" = "$(dpkg --print-architecture)" ]
}

# cross_packages ARCHITECTURE: prints the Debian packages that are needed to build for it.
cross_packages() {
    look_up_architecture "$1" || return
    is_own "$1" || echo "gcc-$(echo "$gnu" | tr _ -) libc6-dev-$1-cross"
}

# build_for ARCHITECTURE: sets target, for `cargo build --target`, and the compiler and linker that Cargo uses for it.
build_for() {
    look_up_architecture "$1" || return
    ! is_own "$1" || return 0
    export "CARGO_TARGET_$(echo "$target" | tr a-z- A-Z_)_LINKER=$gnu-gcc" "CC_$(echo "$target" | tr - _)=$gnu-gcc"
    rustup target add "$target"
}
