#!/bin/sh
# Fetch what the runs on a TPU VM have written since the last time, a file a worker, or follow it.
#
#   sh launch/logs.sh [SETTINGS] [--follow]
#
#   --follow   show the log of worker 0 as it grows
#
set -eu
# shellcheck disable=SC2034  # settings.sh reads it
switches=--follow follow=''
. "$(dirname "$0")/lib/settings.sh"
. "$(dirname "$0")/lib/tpu.sh"
if [ -n "$follow" ]; then
    on_workers 0 "tail -n 50 -F firth-run/log"
    exit
fi
if [ -n "$dry_run" ]; then
    statuses
    on_workers 0 "tail -c +1 firth-run/log"
    exit
fi
report=$(statuses) || say "not every worker answered"
# shellcheck disable=SC2046  # a word a host
gather $(hosts "$report")
ls -l "$logs"/*-w-*.log
