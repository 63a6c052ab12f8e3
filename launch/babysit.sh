#!/bin/sh
# Keep a run going until it exits 0: on a TPU VM that this rents, watches, replaces and gives back,
# or on this machine.
#
#   sh launch/babysit.sh [SETTINGS] --max-hours H -- firth train --config ... --workdir gs://...
#   sh launch/babysit.sh --local [--max-restarts N] -- firth train ...
#
# Exit status of the run       what happens
#   0                          done: exit 0
#   2   bad input              not started again: exit 2
#   143 saved on SIGTERM       started again at once
#   any other, killed or not   started again after a delay that doubles while the run keeps failing
# Exit 3: gave up, the restarts or the budget are used up. SIGTERM and SIGINT end the watch with 143;
# they reach a run on this machine, while one on a TPU goes on, and the same command watches it again.
#
# A TPU that is preempted, broken or silent is deleted and asked for anew; so is one on which the
# run fails three times in a row within --backoff-cap. When the watch is over it is deleted.
#
#   --max-restarts N    give up when the run has been started N times again (no limit)
#   --max-hours H       of TPU rented, over all restarts, also of this script; --local: since its start
#   --max-usd U         the same in money, with --usd-hour, the price of the whole TPU
#   --usd-hour P        as in 19.2 for v5litepod-16 at 1.2 a chip
#   --backoff S         first delay in seconds (10), at most --backoff-cap S (600)
#   --poll S            seconds between two looks at a TPU (60)
#   --keep              leave the TPU there at the end
#
set -eu
lib=$(dirname "$0")/lib
# shellcheck disable=SC2034  # settings.sh reads them, babysit_*.sh the rest
values='--max-restarts --max-hours --max-usd --usd-hour --backoff --backoff-cap --poll'
switches='--local --keep'
# shellcheck disable=SC2034
max_restarts='' max_hours='' max_usd='' usd_hour='' backoff=10 backoff_cap=600 poll=60
local='' keep=''
. "$lib/settings.sh"
. "$lib/attend.sh"
[ $# -gt 0 ] || bad "no command; give it after --, as in: -- firth train --config ..."
for value in "$max_restarts" "$backoff" "$backoff_cap" "$poll"; do
    case "$value" in *[!0-9]*) bad "$value is no whole number" ;; esac
done
for value in "$max_hours" "$max_usd" "$usd_hour"; do
    case "$value" in *[!0-9.]*) bad "$value is no number of hours or dollars" ;; esac
done

restarts=0 delay=$backoff
again() { # again WHY LASTED [now]: count a restart; wait before it, or give up
    if [ -n "$max_restarts" ] && [ "$restarts" -ge "$max_restarts" ]; then
        finish 3 "$1; gave up after $restarts restarts"
    fi
    restarts=$((restarts + 1))
    back_off "$1; restart $restarts" "$2" "${3-}"
}

back_off() { # back_off WHAT LASTED [now]: wait twice as long as the last time, anew if that went well
    [ "$2" -lt "$backoff_cap" ] && [ -z "${3-}" ] || delay=$backoff
    if [ -n "${3-}" ]; then
        say "$1"
        return
    fi
    say "$1 in $delay s"
    nap "$delay"
    delay=$((delay * 2 < backoff_cap ? delay * 2 : backoff_cap))
}

nap() {
    [ "$1" -eq 0 ] || attend sleep "$1" || :
    [ -z "$stopping" ] || leave
}

over() { awk "BEGIN { exit !($1 >= $2) }"; }

if [ -n "$local" ]; then
    . "$lib/babysit_local.sh"
else
    . "$lib/babysit_tpu.sh"
fi
babysit "$@"
