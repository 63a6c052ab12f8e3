#!/bin/sh
# Show the curves of a run on this machine; its workdir may be in a bucket, and no TPU need be up.
#
#   sh launch/tensorboard.sh WORKDIR [--port 6006] [--dry-run]
#
set -eu
workdir=${1-}
[ $# -eq 0 ] || shift
# shellcheck disable=SC2034  # settings.sh reads it
values=--port port=6006
. "$(dirname "$0")/lib/settings.sh"
case "$workdir" in '' | -*) bad "no workdir; give it first, as in gs://bucket/runs/base" ;; esac
set -- sh "$(dirname "$0")/local.sh" tensorboard --logdir "$workdir" --port "$port"
if [ -n "$dry_run" ]; then quoted "$@"; else exec "$@"; fi
