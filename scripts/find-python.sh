#!/bin/sh
# Prints a Python 3.11 to 3.13 that can make virtual environments; says what is missing where there is none.
#
#     scripts/find-python.sh              # the first that fits
#     scripts/find-python.sh python3.12   # this one or none
#
# A name on PATH proves little: pyenv's shims exist and fail, and Debian's python3 may come without ensurepip.
# So each candidate is started and asked.
set -eu

usable='import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13)); '
complete='import venv, ensurepip'

fits() { "$1" -c "$usable" >/dev/null 2>&1; }
can_make_environments() { "$1" -c "$complete" >/dev/null 2>&1; }

found_without_ensurepip=''
for candidate in ${1:-python3 python3.13 python3.12 python3.11 python .venv/bin/python}; do
    fits "$candidate" || continue
    if can_make_environments "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
    found_without_ensurepip=$candidate
done

if [ -n "$found_without_ensurepip" ]; then
    echo "narrows: $found_without_ensurepip cannot make virtual environments (no ensurepip)." >&2
    echo "         On Debian and Ubuntu: apt-get install python3-venv" >&2
elif [ -n "${1:-}" ]; then
    echo "narrows: PYTHON=$1 is not a working Python 3.11 to 3.13. Name another, or leave PYTHON out." >&2
else
    echo "narrows: no Python 3.11 to 3.13 on PATH. Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2
fi
exit 1
