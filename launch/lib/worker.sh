#!/bin/sh
# On a worker of a TPU VM, called through ssh by the other scripts: install Firth, start a command
# that outlives the connection, tell how it is, stop it.
#
#   worker.sh setup EXTRAS [BUCKET]   an environment for the commit that is checked out here, and
#                                the bucket at /mnt/BUCKET
#   worker.sh start COMMAND...   end what ran before, then start this
#   worker.sh status             HOST absent|running|exited CODE SECONDS CHECKSUM LAST-LINE
#   worker.sh stop               SIGTERM, and SIGKILL to what is left after 90 s
#
# In ~/firth-run: log; exit, `CODE SECONDS`, once the command has ended; command, a line an argument.
set -eu
cd "$(dirname "$0")/../.."
environment=$HOME/firth-venv
run=$HOME/firth-run
mkdir -p "$run"

commit() { git rev-parse HEAD 2>/dev/null || echo "no commit"; }

setup() {
    [ -z "${2-}" ] || mount_bucket "$2"
    wanted="$(commit) $1"
    [ "$(cat "$environment/.installed" 2>/dev/null)" != "$wanted" ] || return 0
    # uv brings a Python of its own: that of the TPU images is older than Firth needs.
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet --user --upgrade uv
    python3 -m uv venv --quiet --allow-existing --python '>=3.11,<3.13' "$environment"
    python3 -m uv pip install --quiet --python "$environment/bin/python" --editable ".[$1]"
    echo "$wanted" >"$environment/.installed"
}

mount_bucket() { # with Cloud Storage FUSE, whose renaming of folders must be allowed for checkpoints
    ! mountpoint -q "/mnt/$1" || return 0
    apt=https://packages.cloud.google.com/apt key=/usr/share/keyrings/cloud.google.asc
    if ! command -v gcsfuse >/dev/null; then
        curl -fsS "$apt/doc/apt-key.gpg" | sudo tee "$key" >/dev/null
        echo "deb [signed-by=$key] $apt gcsfuse-$(lsb_release -cs) main" |
            sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
        sudo apt-get update -qq
        sudo apt-get install -qq gcsfuse
    fi
    sudo mkdir -p "/mnt/$1"
    sudo chown "$(id -u)" "/mnt/$1"
    gcsfuse --implicit-dirs --rename-dir-limit=100000 "$1" "/mnt/$1"
}

alive() { ! flock --nonblock "$run/lock" true; } # every process of the run holds the lock

stop() {
    if [ -e "$run/pid" ] && alive; then
        kill -TERM "$(cat "$run/pid")" 2>/dev/null || :
        flock --timeout 90 "$run/lock" true || kill -KILL -- "-$(cat "$run/pid")"
    fi
}

start() {
    stop
    rm -f "$run/exit"
    printf '%s\n' "$@" >"$run/command"
    date +%s >"$run/started"
    exec 9>"$run/lock"
    flock --timeout 10 9
    PATH="$environment/bin:$PATH" PYTHONUNBUFFERED=1 \
        setsid sh launch/lib/worker.sh attend "$@" </dev/null >>"$run/log" 2>&1 &
    echo $! >"$run/pid"
}

watch() { # the session that start leaves behind
    . launch/lib/attend.sh
    echo "== $(date -u +%Y-%m-%dT%H:%M:%SZ) $(uname -n) $(commit): $*"
    status=0
    attend "$@" || status=$?
    echo "== exit $status"
    echo "$status $(($(date +%s) - $(cat "$run/started")))" >"$run/exit.new"
    mv "$run/exit.new" "$run/exit"
}

status() {
    host=$(uname -n)
    if [ ! -e "$run/command" ]; then
        echo "$host absent 0 0 0"
        return
    fi
    sum=$(cksum <"$run/command" | cut -d ' ' -f 1)
    lasted=$(($(date +%s) - $(cat "$run/started")))
    if [ -e "$run/exit" ]; then
        state="exited $(cat "$run/exit")"
    elif alive; then
        state="running 0 $lasted"
    else
        state="exited 137 $lasted" # its watcher is gone too, as after a reboot
    fi
    echo "$host $state $sum $(tail -n 1 "$run/log" 2>/dev/null | cut -c 1-200)"
}

verb=$1
shift
case "$verb" in
setup | start | stop | status) "$verb" "$@" ;;
attend) watch "$@" ;;
*)
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
