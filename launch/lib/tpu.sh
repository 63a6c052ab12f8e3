# shellcheck shell=sh
# Sourced after settings.sh: all that is asked of Google Cloud. One queued resource holds one node,
# both called $name; every worker of the node has the checkout, an environment and worker.sh.
# shellcheck disable=SC2154  # settings.sh sets them

for setting in project zone name; do
    eval "[ -n \"\$$setting\" ]" ||
        bad "--$setting is not set; give it, or put a line $setting=... into tpu.env"
done
case "$bucket" in '' | gs://*) ;; *) bad "--bucket $bucket: expected gs://NAME" ;; esac
bucket=${bucket%/}
logs=${logs:-runs/launch/$name}
case "$logs" in /*) ;; *) logs=$PWD/$logs ;; esac
checkout=$(cd "$(dirname "$0")/.." && pwd)
error=$logs/error # what gcloud said last where that matters
if [ -n "$dry_run" ]; then error=/dev/null; else mkdir -p "$logs"; fi

cloud() { # cloud ARGUMENTS...: gcloud compute tpus; under --dry-run its command line instead
    set -- gcloud compute tpus "$@" "--zone=$zone" "--project=$project" --quiet
    if [ -n "$dry_run" ]; then quoted "$@"; else "$@" </dev/null; fi
}

runtime_of() { # the software version for an accelerator type
    case "$1" in
    v5litepod-*) echo v2-alpha-tpuv5-lite ;;
    v5p-*) echo v2-alpha-tpuv5 ;;
    v6e-*) echo v2-alpha-tpuv6e ;;
    v[234]-*) echo tpu-ubuntu2204-base ;;
    '') bad "--type is not set; give it, as in --type v5litepod-16" ;;
    *) bad "--type $1 is none of v2-N, v3-N, v4-N, v5litepod-N, v5p-N, v6e-N; give its --runtime" ;;
    esac
}

create() {
    # shellcheck disable=SC2086  # $create_flags are several words
    cloud queued-resources create "$name" "--node-id=$name" "--accelerator-type=$type" \
        "--runtime-version=$runtime" ${spot:+--spot} $create_flags
}

delete() { cloud queued-resources delete "$name" --force; }

queued_state() { # of the queued resource: ACTIVE, SUSPENDED, ...; ABSENT; UNKNOWN if no answer
    if cloud queued-resources describe "$name" '--format=value(state.state)' 2>"$error"; then
        return
    elif grep -q NOT_FOUND "$error"; then
        echo ABSENT
    else
        cat "$error" >&2
        echo UNKNOWN
    fi
}

node_state() { # of the node: READY, PREEMPTED, ...; UNKNOWN if no answer
    cloud tpu-vm describe "$name" '--format=value(state)' || echo UNKNOWN
}

on_workers() { # on_workers all|NUMBER COMMAND: run a line of shell there
    cloud tpu-vm ssh "$name" "--worker=$1" "--command=$2"
}

bundle() { # pack the commit that is checked out here; what is not committed stays here
    if [ -n "$dry_run" ]; then
        quoted git -C "$checkout" bundle create "$logs/firth.bundle" HEAD
        return
    fi
    [ "$(git -C "$checkout" rev-parse --is-shallow-repository)" = false ] ||
        bad "$checkout is no complete git clone; git fetch --unshallow makes a shallow one whole"
    [ -z "$(git -C "$checkout" status --porcelain)" ] ||
        say "uncommitted changes in $checkout are not sent"
    git -C "$checkout" bundle create --quiet "$logs/firth.bundle" HEAD
}

install() { # send the bundle to every worker and install it there; does nothing a second time
    cloud tpu-vm scp "$logs/firth.bundle" "$name:firth.bundle" --worker=all &&
        on_workers all "git init -q firth && git -C firth fetch -q ../firth.bundle HEAD &&\
 git -C firth checkout -q -f --detach FETCH_HEAD && sh firth/launch/lib/worker.sh setup $extras ${bucket#gs://}"
}

start() { # start COMMAND...: on every worker, ending what ran before
    on_workers all "sh firth/launch/lib/worker.sh start $(quoted "$@")"
}

stop() { on_workers all "sh firth/launch/lib/worker.sh stop"; }

statuses() { # a line a worker: HOST absent|running|exited CODE SECONDS CHECKSUM LAST-LINE
    on_workers all "[ ! -e firth/launch/lib/worker.sh ] && echo \$(uname -n) absent 0 0 0 ||\
 sh firth/launch/lib/worker.sh status"
}

hosts() { # hosts STATUSES: the names in them, a line each
    printf '%s\n' "$1" | awk '$2 ~ /^(absent|running|exited)$/ { print $1 }'
}

gather() { # gather HOST...: fetch what their logs have grown by; they are called ...-w-NUMBER
    missed=0
    for host; do
        file=$logs/$host.log
        have=$(cat "$file" 2>/dev/null | wc -c)
        on_workers "${host##*-w-}" "tail -c +$((have + 1)) firth-run/log" >>"$file" || missed=1
    done
    return "$missed"
}
