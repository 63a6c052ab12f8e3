#!/bin/sh
# Install the commit that is checked out here, and what it needs, on every worker of a TPU VM.
#
#   sh launch/setup.sh [SETTINGS]
#
# run.sh and babysit.sh do it themselves; what is installed already is left alone.
#
set -eu
. "$(dirname "$0")/lib/settings.sh"
. "$(dirname "$0")/lib/tpu.sh"
bundle
install
