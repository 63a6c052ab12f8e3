#!/bin/sh
# Keep a run going until it exits 0, on this machine.
#
#   sh launch/babysit.sh --local [--max-restarts N] [--max-hours H] -- firth train ...
#
# Exit status of the run       what happens
#   0                          done: exit 0
#   2   bad input              not started again: exit 2
#   143 saved on SIGTERM       started again at once
#   any other, killed or not   started again after a delay that doubles while the run keeps failing
# Exit 3: gave up, the restarts or the budget are used up. SIGTERM and SIGINT reach the run and
# end the watch with 143.
#
#   --max-restarts N   give up when the run has been started N times again (no limit)
#   --max-hours H      start nothing after H hours
#   --backoff S        first delay in seconds (10), at most --backoff-cap S (600)
#   --dry-run          print the command and run nothing
set -eu

local_mode='' max_restarts='' max_hours='' backoff=10 backoff_cap=600 dry_run=''
bad() {
    echo "babysit: error: $*" >&2
    exit 2
}
while [ $# -gt 0 ]; do
    case "$1" in
    --local) local_mode=yes ;;
    --dry-run) dry_run=yes ;;
    --max-restarts) max_restarts=${2-} && shift ;;
    --max-hours) max_hours=${2-} && shift ;;
    --backoff) backoff=${2-} && shift ;;
    --backoff-cap) backoff_cap=${2-} && shift ;;
    --) shift && break ;;
    *) bad "no flag $1; the command to keep going comes after --" ;;
    esac
    shift
done
[ -n "$local_mode" ] || bad "only --local so far"
[ $# -gt 0 ] || bad "no command; give it after --, as in: -- firth train --config ..."

say() { echo "babysit: $*" >&2; }

# The run, or the sleep between two, is a child in the background, so that a signal to this shell
# is passed on at once.
child='' stopping=''
stop() {
    stopping=yes
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || :
}
trap stop TERM INT HUP

attend() { # attend COMMAND...: run it to its end and return its exit status
    "$@" &
    child=$!
    while :; do
        status=0
        wait "$child" || status=$?
        kill -0 "$child" 2>/dev/null || break # else a signal to this shell ended the wait early
    done
    child=''
    return "$status"
}

if [ -n "$dry_run" ]; then
    echo "$*"
    exit 0
fi
born=$(date +%s) restarts=0 delay=$backoff
while :; do
    started=$(date +%s)
    status=0
    attend "$@" || status=$?
    now=$(date +%s)
    lasted=$((now - started))
    [ -z "$stopping" ] || exit 143
    case "$status" in
    0) exit 0 ;;
    2)
        say "exit 2: bad input, which another start does not mend"
        exit 2
        ;;
    143) delay=0 ;;
    *) [ "$lasted" -lt "$backoff_cap" ] || delay=$backoff ;;
    esac
    if [ -n "$max_restarts" ] && [ "$restarts" -ge "$max_restarts" ]; then
        say "exit $status after $lasted s; gave up after $restarts restarts"
        exit 3
    fi
    if [ -n "$max_hours" ] && awk "BEGIN { exit !($now - $born >= 3600 * $max_hours) }"; then
        say "exit $status after $lasted s; gave up: $max_hours hours are over"
        exit 3
    fi
    restarts=$((restarts + 1))
    say "exit $status after $lasted s; restart $restarts in $delay s"
    [ "$delay" = 0 ] || attend sleep "$delay" || :
    [ -z "$stopping" ] || exit 143
    delay=$((delay == 0 ? backoff : delay * 2 < backoff_cap ? delay * 2 : backoff_cap))
done
