#!/usr/bin/env bash
# The runtime on a real card: mixed precision, compiled BERT, energy, memory given back, all-reduce; prints a table and
# writes results.json. NOT YET MEASURED: what it prints stands in no page before it has run on a card.
#
#   tests/bench/gpu/runtime.sh [OUTPUT_FOLDER]
#
# Needs a Python with PyTorch (PYTHON=..., default python3), and a C++ compiler for torch.compile. No network. Each
# section has a time limit and none stops the rest; all together end within eight minutes.
set -u

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(cd -- "$here/../../.." && pwd)
out=$(mkdir -p -- "${1:-$root/test-output/runtime}" && cd -- "${1:-$root/test-output/runtime}" && pwd)
python=${PYTHON:-python3}
deadline=$((SECONDS + 465))
export PYTHONPATH="$root:$root/images/runtime${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1

: > "$out/lines.jsonl"
rm -f -- "$out/card.json"
note() { # SECTION STATUS REASON
    "$python" -c 'import json,sys; print(json.dumps(dict(zip(("section","status","reason"),sys.argv[1:]))))' "$@" \
        >> "$out/lines.jsonl"
}

# section NAME SECONDS: run it in a process of its own.
section() {
    local name=$1 seconds=$2 left=$((deadline - SECONDS)) status
    if ((left < 5)); then
        note "$name" skipped "no time left"
        return
    fi
    ((seconds > left)) && seconds=$left
    timeout --kill-after=5 "$seconds" "$python" "$here/runtime_sections.py" "$name" "$out" \
        >> "$out/lines.jsonl" 2> "$out/$name.log"
    status=$?
    case $status in
        0) ;;
        124 | 137) note "$name" "timed out" "after $seconds s" ;;
        *) note "$name" failed "exit $status; the end of $name.log: $(tail -n 1 "$out/$name.log" | cut -c1-160)" ;;
    esac
}

section card 40
section amp 70
section bert 120
section models 120
section energy 30
section memory 30
section all-reduce 60
"$python" "$here/table.py" "$out"
