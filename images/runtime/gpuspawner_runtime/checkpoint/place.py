"""Where the checkpoints of a run lie."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from gpuspawner_runtime.checkpoint.store import NAME
from gpuspawner_runtime.errors import RuntimeFault

#: A folder or URL for all runs that do not name one.
CHECKPOINTS = "GPUSPAWNER_CHECKPOINTS"
#: The local disk on which checkpoints for a URL are staged.
STAGE = "GPUSPAWNER_CHECKPOINT_STAGE"


def place_of(run: Any, store: Any) -> tuple[Path, str | None]:
    """The local folder of a run, and the URL behind it or None. Raises RuntimeFault for a name that is none."""
    if not isinstance(run, str) or not NAME.fullmatch(run):
        raise RuntimeFault(
            f"name: {run!r:.60} is no name for a run: up to 100 letters, digits and . _ + = - (not these first).",
            field="name",
            given=run,
            allowed=NAME.pattern,
        )
    given = store if store is not None else os.environ.get(CHECKPOINTS)
    default = Path.home() / ".local/share/gpuspawner-runtime/checkpoints"
    if given is None:
        return default / run, None
    if not isinstance(given, str | os.PathLike):
        raise RuntimeFault(f"store: {given!r:.60} is neither a folder nor a URL.", field="store", given=given)
    text = os.fspath(given)
    if "://" not in text:
        return Path(text).expanduser().absolute() / run, None
    stage = Path(os.environ.get(STAGE) or default).expanduser().absolute()
    return stage / f"stage-{hashlib.sha256(text.encode()).hexdigest()[:12]}" / run, text
