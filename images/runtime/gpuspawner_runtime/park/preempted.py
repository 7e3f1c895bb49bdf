"""What a kernel does whose server is stopped for more urgent work: it parks itself, and is brought back in another.

The Jupyter server asks for both (`gpuspawner_lab.preemption`), between two cells. Both answer in JSON and raise
nothing.
"""

from __future__ import annotations

import contextlib
import io
import json

from gpuspawner_runtime.park.session import park, unpark

_LONGEST = 200


def save(name: str) -> str:
    """Park this session under a name: `{"bytes": N}`, or `{"problem": "why"}`. What could not be taken along is a
    problem: the session then goes on."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            parked = park(name)
    except Exception as error:  # whatever objects do when they are pickled
        return json.dumps({"problem": f"{type(error).__name__}: {error}"[:_LONGEST]})
    if parked.lost:
        parked.path.unlink(missing_ok=True)
        first, *others = parked.lost.values()
        more = f", and {len(others)} more" if others else ""
        return json.dumps({"problem": f"{first[:_LONGEST]}{more}"})
    return json.dumps({"bytes": parked.bytes})


def restore(name: str) -> str:
    """Bring the session of that name back into this kernel, and remove its file: `{"variables": N}`, or
    `{"problem": "why"}`; then the file stays."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            back = unpark(name)
    except Exception as error:
        return json.dumps({"problem": f"{type(error).__name__}: {error}"[:_LONGEST]})
    if back.lost:
        return json.dumps({"problem": next(iter(back.lost.values()))[:_LONGEST]})
    back.path.unlink(missing_ok=True)
    return json.dumps({"variables": len(back.saved)})
