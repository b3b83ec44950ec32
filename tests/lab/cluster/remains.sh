# What the kernel does not end with the namespaces of a cluster; to be sourced.

# A loop device that detaches gives its name to the next one that anybody attaches: it is held open while it is asked what its
# file is, so that it is still that device when it is detached.

# detach_if_on DISK DEVICE: detaches a loop device if its file is on DISK, which the caller holds.
detach_if_on() {
    local number
    read -r number < <(losetup --noheadings --output BACK-MAJ:MIN "$2" 2> /dev/null) || return 0
    [ "$number" != "7:${1#/dev/loop}" ] || losetup --detach "$2" 2> /dev/null || true
}

# detach_above IMAGE DISK: detaches the loop devices whose files are on DISK, if that is over IMAGE.
detach_above() {
    local device
    losetup --noheadings --raw --output NAME --associated "$1" | grep -qxF "$2" || return 0
    for device in $(losetup --list --noheadings --raw --output NAME); do
        [ ! -b "$device" ] || { detach_if_on "$2" "$device" < "$device"; } 2> /dev/null || true
    done
}

# detach_loops IMAGE: detaches the loop devices whose files are on the file system of IMAGE until no device is over IMAGE
# itself, which ends when nothing on it is in use.
detach_loops() {
    local image=$1 disk attempt
    [ -e "$image" ] || return 0
    for attempt in $(seq 300); do
        disk=$(losetup --noheadings --raw --output NAME --associated "$image" | head -n 1)
        [ -n "$disk" ] || return 0
        { detach_above "$image" "$disk" < "$disk"; } 2> /dev/null || true
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
    local cluster=$1 image
    for image in "$cluster"/nodes/*/drumlin.img; do
        detach_loops "$image" || true
    done
    remove_cgroups "$(basename "$cluster")"
    rm -rf --one-file-system "$cluster"
}
