#!/bin/sh
# Tell how a TPU VM and the run on each of its workers are.
#
#   sh launch/status.sh [SETTINGS]
#
# A line a worker: host, absent, running or exited, exit status, seconds, checksum of the command,
# last line of the log.
#
set -eu
. "$(dirname "$0")/lib/settings.sh"
. "$(dirname "$0")/lib/tpu.sh"
state=$(queued_state)
echo "$state"
if [ -n "$dry_run" ] || [ "$state" = ACTIVE ]; then
    statuses
fi
