# Archives of container images without a registry or a builder: what `ctr images import` reads; to be sourced.

# one_binary LAYER PROGRAM PATH: a layer, a tar, with a program at PATH, and what containers of ours want to find.
one_binary() {
    local layer=$1 program=$2 path=$3 root
    root=$(mktemp -d)
    mkdir -p "$root/$(dirname "$path")" "$root/tmp" "$root/csi" "$root/etc"
    chmod 1777 "$root/tmp"
    cp "$program" "$root/$path"
    chmod 755 "$root/$path"
    tar --create --file "$layer" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --directory "$root" .
    rm -r "$root"
}

# busybox_root LAYER [PATH PROGRAM]...: a layer with busybox in /bin under all its names, and further programs at their PATHs.
busybox_root() {
    local layer=$1 root name
    shift
    root=$(mktemp -d)
    mkdir -p "$root/bin" "$root/tmp" "$root/etc" "$root/proc" "$root/sys" "$root/dev" "$root/root" "$root/mnt" "$root/usr/bin" "$root/sbin"
    chmod 1777 "$root/tmp"
    cp "$(command -v busybox)" "$root/bin/busybox"
    for name in $(busybox --list); do
        [ "$name" = busybox ] || ln "$root/bin/busybox" "$root/bin/$name"
    done
    echo 'root:x:0:0:root:/root:/bin/sh' > "$root/etc/passwd"
    echo 'root:x:0:' > "$root/etc/group"
    while [ $# -gt 0 ]; do
        mkdir -p "$root/$(dirname "$1")"
        # All names of busybox are one file.
        cp --dereference --remove-destination "$2" "$root/$1"
        chmod 755 "$root/$1"
        shift 2
    done
    tar --create --file "$layer" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --directory "$root" .
    rm -r "$root"
}

# begin_archive DIRECTORY: where the next one is put together.
begin_archive() {
    building=$1
    mkdir -p "$building"
    : > "$building/manifest"
}
# image NAME ENTRYPOINT LAYER...: ENTRYPOINT as JSON, such as ["/pause"], with a default of its arguments behind it where there
# is one: ["/agnhost"],"Cmd":["pause"].
image() {
    local name=$1 entrypoint=$2 layer digest digests='' files='' config
    shift 2
    for layer in "$@"; do
        digest=$(sha256sum < "$layer" | cut -d ' ' -f 1)
        [ -e "$building/$digest.tar" ] || ln "$layer" "$building/$digest.tar" 2> /dev/null || cp "$layer" "$building/$digest.tar"
        digests="$digests,\"sha256:$digest\""
        files="$files,\"$digest.tar\""
    done
    config=$(mktemp)
    printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":%s,"Env":["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},"rootfs":{"type":"layers","diff_ids":[%s]}}' \
        "$(go env GOARCH)" "$entrypoint" "${digests#,}" > "$config"
    digest=$(sha256sum < "$config" | cut -d ' ' -f 1)
    mv "$config" "$building/$digest.json"
    chmod 644 "$building/$digest.json"
    printf ',{"Config":"%s.json","RepoTags":["%s"],"Layers":[%s]}' "$digest" "$name" "${files#,}" >> "$building/manifest"
}
# end_archive ARCHIVE
end_archive() {
    { printf '['; cut -c 2- "$building/manifest" | tr -d '\n'; printf ']'; } > "$building/manifest.json"
    rm "$building/manifest"
    tar --create --file "$1" --directory "$building" .
    rm -r "$building"
}
