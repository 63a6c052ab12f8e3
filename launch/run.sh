#!/bin/sh
# Start a command on every worker of a TPU VM that is there, and leave it running.
#
#   sh launch/run.sh [SETTINGS] -- firth train --config bert.py:base --workdir gs://...
#
# It ends what ran there before. status.sh tells how it goes, logs.sh fetches what it writes, and
# babysit.sh does all of it, from renting the TPU to giving it back.
#
set -eu
. "$(dirname "$0")/lib/settings.sh"
[ $# -gt 0 ] || bad "no command; give it after --, as in: -- firth train --config ..."
. "$(dirname "$0")/lib/tpu.sh"
bundle
install
start "$@"
