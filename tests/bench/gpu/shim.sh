#!/usr/bin/env bash
# The shim on a real card: builds it, runs one section after the other, prints a table and writes results.json.
#
#   tests/bench/gpu/shim.sh [OUTPUT_FOLDER]
#
# Needs an NVIDIA driver, a C compiler, make and a Python with PyTorch (PYTHON=..., default python3). No network. Each
# section has a time limit and none stops the rest; all together end within eight minutes.
set -u

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../../.." && pwd)
out=$(mkdir -p -- "${1:-$root/test-output/shim}" && cd -- "${1:-$root/test-output/shim}" && pwd)
python=${PYTHON:-python3}
deadline=$((SECONDS + 470))
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1

: > "$out/lines.jsonl"
note() { # SECTION STATUS REASON
    "$python" -c 'import json,sys; print(json.dumps(dict(zip(("section","status","reason"),sys.argv[1:]))))' "$@" \
        >> "$out/lines.jsonl"
}

build() {
    timeout 120 make -s -C "$root/gpuspawner/node/limits" > "$out/build.log" 2>&1 || { note build failed "see build.log"; return 1; }
    "$python" "$here/prepare.py" "$out" 2> "$out/prepare.log" || { note build failed "see prepare.log"; return 1; }
    note build ok "shim built, limit file written"
}

# section NAME SECONDS: run it in a process of its own, with the shim or, for a baseline, without (PLAIN=1).
section() {
    local name=$1 seconds=$2 left=$((deadline - SECONDS)) status
    if ((left < 5)); then
        note "$name" skipped "no time left"
        return
    fi
    ((seconds > left)) && seconds=$left
    timeout --kill-after=5 "$seconds" "$python" "$here/sections.py" "$name" "$out" \
        >> "$out/lines.jsonl" 2> "$out/$name.log"
    status=$?
    case $status in
        0) ;;
        124 | 137) note "$name" "timed out" "after $seconds s" ;;
        *) note "$name" failed "exit $status; the end of $name.log: $(tail -n 1 "$out/$name.log" | cut -c1-160)" ;;
    esac
}

if build; then
    section card 20
    section cap 30
    section resize 30
    section resize-torch 40
    section caching 40
    section expandable 40
    section async 40
    section graphs 40
    section compile 90
    section two 60
    section overhead-train 70
    section overhead-small 40
    section overhead-egl 40
    section escapes 30
fi
"$python" "$here/table.py" "$out"
