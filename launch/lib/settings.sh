# shellcheck shell=sh
# Sourced by the scripts for TPU VMs. Their settings are flags, or lines as in `zone=us-west4-a` of a
# file tpu.env in the current folder; flags win.
#
#   --project P        Google Cloud project
#   --zone Z           as in us-west4-a
#   --name N           of the queued resource and of its node
#   --type T           accelerator type, as in v5litepod-16, v5p-8, v6e-8 or v4-8
#   --runtime R        software version (that which fits the type)
#   --spot             a spot VM: cheaper, may be taken away at any time
#   --bucket gs://B    mounted at /mnt/B on every worker: a folder that all hosts of a pod share
#   --create-flags F   more flags of `gcloud compute tpus queued-resources create`
#   --extras E         extras of Firth to install (tpu,remote)
#   --logs DIR         where logs and accounts of the run go on this machine (runs/launch/NAME)
#   --dry-run          print every command, run none
#
# A script that takes more lists them in $values or $switches before it sources this file. What
# follows -- is left in "$@".
# shellcheck disable=SC2034  # they are for the scripts that source this

me=$(basename "$0" .sh)
say() { echo "$me: $*" >&2; }
bad() {
    say "error: $*"
    exit 2
}

project='' zone='' name='' type='' runtime='' spot='' bucket=''
create_flags='' extras=tpu,remote logs='' dry_run=''
# shellcheck disable=SC1091
[ ! -f tpu.env ] || . ./tpu.env

values=" --project --zone --name --type --runtime --bucket --create-flags --extras --logs
 ${values-} "
switches=" --spot --dry-run ${switches-} "
while [ $# -gt 0 ]; do
    case "$1" in
    --)
        shift
        break
        ;;
    -h | --help)
        sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" "$(dirname "$0")/lib/settings.sh"
        exit 0
        ;;
    --*=*)
        flag=${1%%=*} value=${1#*=}
        shift
        set -- "$flag" "$value" "$@"
        ;;
    esac
    variable=$(printf %s "${1#--}" | tr - _)
    case "$values|$switches" in
    *" $1 "*"|"*)
        [ $# -ge 2 ] || bad "$1 needs a value"
        eval "$variable=\$2"
        shift
        ;;
    *"|"*" $1 "*) eval "$variable=yes" ;;
    *) bad "no flag $1; there are$values$switches" ;;
    esac
    shift
done

quoted() { # the arguments as one line that a shell reads back as them
    line=''
    for word; do
        case "$word" in
        '' | *[!A-Za-z0-9_./:=,@%+-]*) word="'$(printf %s "$word" | sed "s/'/'\\\\''/g")'" ;;
        esac
        line="$line${line:+ }$word"
    done
    printf '%s\n' "$line"
}
