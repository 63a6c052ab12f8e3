# shellcheck shell=sh
# Sourced by babysit.sh: the run is a child on this machine.
# shellcheck disable=SC2154  # babysit.sh sets them

finish() { # finish STATUS WHY
    say "$2"
    exit "$1"
}

leave() { exit 143; }

babysit() {
    if [ -n "$dry_run" ]; then
        quoted "$@"
        return
    fi
    born=$(date +%s)
    while :; do
        started=$(date +%s) status=0
        attend "$@" || status=$?
        now=$(date +%s)
        case "$status" in
        0) exit 0 ;;
        2) finish 2 "exit 2: bad input, which another start does not mend" ;;
        esac
        [ -z "$stopping" ] || leave
        if [ -n "$max_hours" ] && over "$now - $born" "3600 * $max_hours"; then
            finish 3 "exit $status; gave up, as $max_hours hours are over"
        fi
        now_or_later=''
        [ "$status" != 143 ] || now_or_later=now
        again "exit $status after $((now - started)) s" "$((now - started))" $now_or_later
    done
}
