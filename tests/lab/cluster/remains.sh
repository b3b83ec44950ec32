# What the kernel does not end with the namespaces of a cluster; to be sourced.

# detach_loops DISK: detaches the loop devices whose files are on DISK, another loop device, until DISK itself is free, which
# it is when nothing on it is in use.
detach_loops() {
    local disk=$1 device attempt
    [ -n "$disk" ] || return 0
    for attempt in $(seq 300); do
        [ -e "/sys/block/${disk#/dev/}/loop/backing_file" ] || return 0
        losetup --list --noheadings --output NAME,BACK-MAJ:MIN \
            | awk -v on="7:${disk#/dev/loop}" '$2 == on { print $1 }' \
            | while read -r device; do
                losetup --detach "$device" 2> /dev/null || true
            done
        sleep 0.1
    done
    echo "cluster: $disk is still in use after $attempt attempts" >&2
    return 1
}

# remove_cgroups NAME: the control groups of that name, in every hierarchy, with all that is beneath.
remove_cgroups() {
    local group
    for group in /sys/fs/cgroup/"$1" /sys/fs/cgroup/*/"$1"; do
        [ -d "$group" ] || continue
        # Who was killed leaves them a moment later.
        for _ in $(seq 50); do
            find "$group" -depth -type d -exec rmdir {} + 2> /dev/null && break
            sleep 0.1
        done
    done
}

# remove_cluster DIRECTORY: of a cluster whose processes are gone.
remove_cluster() {
    local cluster=$1 disk
    for disk in "$cluster"/nodes/*/disk; do
        [ ! -e "$disk" ] || detach_loops "$(cat "$disk")" || true
    done
    remove_cgroups "$(basename "$cluster")"
    rm -rf --one-file-system "$cluster"
}
