#!/bin/sh
# Stop a run: SIGTERM on every worker, so that it saves, then give the TPU back.
#
#   sh launch/stop.sh [SETTINGS] [--keep]
#
#   --keep   stop the run only; the TPU stays, and costs
#
# End babysit.sh first, or it starts the run again; logs.sh fetches the logs while the TPU is there.
#
set -eu
# shellcheck disable=SC2034  # settings.sh reads it
switches=--keep keep=''
. "$(dirname "$0")/lib/settings.sh"
. "$(dirname "$0")/lib/tpu.sh"
stop || say "not every worker answered"
[ -n "$keep" ] || delete
