# On which processor a machine of the lab runs; to be sourced.

# one_processor DIRECTORY: sets `processor` to one that no other machine has, where there are enough, and keeps it for as long
# as this script runs, by a lock in this directory.
#
# A machine's programs and its kernel take turns, and to wake each other over two processors costs more than all the rest: a
# system call of its programs 50 microseconds instead of 8.
one_processor() {
    local range processors=() other
    for range in $(taskset -cp $$ | sed 's/.*: //; s/,/ /g'); do
        for other in $(seq "${range%-*}" "${range#*-}"); do processors+=("$other"); done
    done
    processor=${processors[RANDOM % ${#processors[@]}]}
    for other in "${processors[@]}"; do
        exec 9> "$1/cpu-$other"
        if flock -n 9; then
            processor=$other
            break
        fi
    done
}
