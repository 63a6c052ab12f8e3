# shellcheck shell=sh
# Sourced by babysit.sh and worker.sh: a command as a child that hears what this shell hears.

child='' stopping=''
pass_on() {
    stopping=yes
    [ -z "$child" ] || kill -TERM "$child" 2>/dev/null || :
}
trap pass_on TERM INT HUP

attend() { # attend COMMAND...: run it to its end, passing SIGTERM on, and return its exit status
    "$@" &
    child=$!
    [ -z "$stopping" ] || pass_on # the signal came before there was a child to tell
    while :; do
        status=0
        wait "$child" || status=$?
        kill -0 "$child" 2>/dev/null || break # else a signal to this shell ended the wait early
    done
    child=''
    return "$status"
}
