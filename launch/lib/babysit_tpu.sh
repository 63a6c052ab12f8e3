# shellcheck shell=sh
# Sourced by babysit.sh: the run is on the workers of a TPU VM. Each round looks at what is there and
# does the next thing; nothing but the account of what was spent is remembered over a restart.
# shellcheck disable=SC2154  # babysit.sh and settings.sh set them
. "$lib/tpu.sh"

[ -z "$max_usd" ] || [ -n "$usd_hour" ] || bad "--max-usd needs --usd-hour, the price of the TPU"
[ -n "$max_hours$max_usd" ] || bad "a TPU costs until somebody stops it: give --max-hours or --max-usd"
runtime=${runtime:-$(runtime_of "$type")}
case "${bucket:+mounted} $* " in
*" --workdir "*://* | *" --workdir="*://* | mounted*" --workdir"[\ =]/mnt/*) ;;
*) bad "what lies on a TPU VM goes with it: give a --workdir gs://..., or /mnt/... of a --bucket" ;;
esac

strikes=0 crashes=0 uneven='' before=''
errors=$logs/gcloud.log # what gcloud says on the way

# -------------------------------------------------------------------------------- the account

charge() { # charge STATE: add the time since the last look if the TPU was there
    now=$(date +%s)
    spent=0 last=$now was=ABSENT
    [ ! -e "$logs/spent" ] || read -r spent last was <"$logs/spent"
    [ -n "$before" ] || [ "$1" = ACTIVE ] || was=ABSENT # given back while nobody watched
    [ "$was" != ACTIVE ] || spent=$((spent + now - last))
    [ "$1" = UNKNOWN ] || was=$1
    echo "$spent $now $was" >"$logs/spent.new"
    mv "$logs/spent.new" "$logs/spent"
}

within_budget() {
    [ -z "$max_hours" ] || ! over "$spent" "3600 * $max_hours" || return 1
    [ -z "$max_usd" ] || ! over "$spent * $usd_hour" "3600 * $max_usd" || return 1
}

# ------------------------------------------------------------------------------ ends of the watch

finish() { # finish STATUS WHY: fetch the logs, give the TPU back, exit
    say "$2; rented for $spent s in all"
    if [ "$before" = ACTIVE ]; then
        [ "$1" = 0 ] || stop >>"$errors" 2>&1 || say "not every worker could be told to stop"
        report=$(statuses 2>>"$errors") || :
        fetch "$report"
        for host in $(hosts "$report"); do
            [ "$1" = 0 ] || tail -n 3 "$logs/$host.log" >&2
        done
    fi
    [ "$1" != 0 ] || mv "$logs/spent" "$logs/spent.done"
    [ -n "$keep" ] || [ "$before" = ABSENT ] || give_back
    exit "$1"
}

fetch() { # fetch STATUSES: the logs of the workers named there
    # shellcheck disable=SC2046  # a word a host
    gather $(hosts "$1") 2>>"$errors" || say "not every log could be fetched; see $errors"
}

give_back() {
    for pause in 10 60 300 600 ''; do
        ! delete >>"$errors" 2>&1 || return 0
        [ -z "$pause" ] || nap "$pause"
    done
    say "$name COULD NOT BE DELETED AND GOES ON COSTING: sh launch/stop.sh, and see $errors"
}

leave() {
    say "the watch ends; $name goes on and costs. The same command watches it again, launch/stop.sh ends it"
    exit 143
}

# ------------------------------------------------------------------------------------- a round

ask() { # ask for the TPU
    if create >>"$errors" 2>"$error"; then
        say "asked for $type as $name"
        pause=$poll
        return
    fi
    cat "$error" >>"$errors"
    reason=$(grep -v '^ *$' "$error" | tail -n 1)
    if ! grep -qi quota "$error" &&
        grep -qE 'INVALID_ARGUMENT|PERMISSION_DENIED|UNAUTHENTICATED|active account|unrecognized' \
            "$error"; then
        finish 2 "the TPU cannot be asked for: $reason"
    fi
    back_off "the TPU was not given: $reason; asking again" 0
}

replace() { # replace WHY: delete the TPU; the next round asks for another
    strikes=0 crashes=0 uneven=''
    delete >>"$errors" 2>&1 || say "$name could not be deleted yet; see $errors"
    again "$1" "${lasted:-0}"
    lasted=0
}

strike() { # strike LIMIT WHY: a VM that fails as often in a row is replaced
    strikes=$((strikes + 1))
    if [ "$strikes" -ge "$1" ]; then
        replace "$2"
    else
        say "$2 ($strikes of $1)"
        pause=$poll
    fi
}

launch() {
    if install >>"$errors" 2>&1 && start "$@" >>"$errors" 2>&1; then
        say "started on every worker"
        strikes=0
        pause=$poll
    else
        strike 3 "not every worker could be set up; see $errors"
    fi
}

tend() { # look at the run on every worker and do what it needs
    if ! report=$(statuses 2>>"$errors"); then
        node=$(node_state 2>>"$errors")
        case "$node" in
        READY | UNKNOWN) ;;
        *)
            replace "the node is $node"
            return
            ;;
        esac
        # Where none answers it may well be this machine that is cut off: wait longer.
        answered=$(hosts "$report" | tr '\n' ' ')
        if [ -n "$answered" ]; then
            strike 3 "only ${answered}answered"
        else
            strike 10 "no worker answers"
        fi
        return
    fi
    verdict=$(printf '%s\n' "$report" | awk -v mine="$(printf '%s\n' "$@" | cksum | cut -d ' ' -f 1)" '
        $2 ~ /^(absent|running|exited)$/ {
            if ($2 == "running") { if ($5 == mine) running = 1; else other = 1 }
            else if ($2 == "absent" || $5 != mine) fresh = 1
            else if ($3 == 2) input = 1
            else if ($3 == 143) saved = 1
            else if ($3 != 0) failed = $3
            if ($4 > lasted) lasted = $4
        }
        END {
            print other ? "other" : input ? "input" : failed ? failed : saved ? "143" : \
                fresh ? "fresh" : running ? "running" : "0", running + 0, lasted + 0
        }')
    # shellcheck disable=SC2086
    set -- $verdict "$@"
    verdict=$1 running=$2 lasted=$3
    shift 3
    case "$verdict" in
    0) finish 0 "the run has ended well" ;;
    other)
        before=ABSENT # it is not ours: leave its logs and the TPU alone
        finish 2 "another command runs on $name; stop it with launch/stop.sh or choose another --name"
        ;;
    input) finish 2 "exit 2: bad input, which another start does not mend" ;;
    fresh) launch "$@" ;;
    running)
        strikes=0 uneven=''
        pause=$poll
        fetch "$(printf '%s\n' "$report" | grep -e '-w-0 ')" # that of process 0, before it is lost
        ;;
    *)
        if [ "$running" = 1 ] && [ -z "$uneven" ]; then
            uneven=yes # the others may be about to save and end too: give them a round
            pause=$poll
            return
        fi
        uneven=''
        now_or_later=''
        if [ "$verdict" = 143 ]; then
            crashes=0 now_or_later=now
        else
            crashes=$((lasted < backoff_cap ? crashes + 1 : 1))
        fi
        if [ "$crashes" -ge 3 ]; then
            replace "exit $verdict, three times in a row on this TPU"
        else
            again "exit $verdict after $lasted s" "$lasted" $now_or_later
            launch "$@"
            fetch "$report"
        fi
        ;;
    esac
}

babysit() {
    bundle
    if [ -n "$dry_run" ]; then
        create
        queued_state
        install
        start "$@"
        statuses
        delete
        return
    fi
    while :; do
        pause=0
        state=$(queued_state)
        if [ "$state" = UNKNOWN ] && [ -z "$before" ]; then
            bad "Google Cloud does not answer; see above"
        fi
        charge "$state"
        [ "$state" = "$before" ] || say "$name is $state"
        before=$state
        within_budget || finish 3 "the budget is spent, by the account in $logs/spent"
        case "$state" in
        ABSENT) ask ;;
        ACTIVE) tend "$@" ;;
        FAILED | SUSPENDED) replace "$name is $state" ;;
        *) pause=$poll ;; # on its way, or no answer: look again
        esac
        nap "$pause"
    done
}
