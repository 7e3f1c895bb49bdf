"""What the image `base` adds to the start of JupyterLab: the same container without its hooks and without our server
extension, in the same run. From the start of the container until /lab is answered. Rounds alternate."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import gpuspawner
from gpuspawner.errors import Unavailable
from tests.support.container import GIB, Share, lab, share, why_not

ROUNDS = 5
_PLAIN = {"ServerApp": {"jpserver_extensions": {"gpuspawner_lab": False}}}


def _start(image: str, folder: Path, given: Share | None) -> float:
    """Seconds until it answers; None given: plain."""
    if given is None:
        settings = folder / "home/.jupyter"
        settings.mkdir(parents=True)
        os.chown(settings, 1000, 1000)
        (settings / "jupyter_server_config.json").write_text(json.dumps(_PLAIN))
    began = time.perf_counter()
    with lab(image, folder, given, entrypoint=() if given is not None else ("tini", "--")):
        return time.perf_counter() - began


def run() -> tuple[float, str]:
    """The median over ROUNDS of the time added, in seconds."""
    image = f"localhost/gpuspawner-base:{gpuspawner.__version__}"
    reason = why_not(image)
    if reason:
        raise Unavailable(reason)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        with share(folder / "share", 2, 20 * GIB) as (given, _):
            taken = []
            for round_ in range(ROUNDS):
                kinds: list[Share | None] = [given, None] if round_ % 2 == 0 else [None, given]
                times = {each is None: _start(image, folder / f"{round_}-{each is None}", each) for each in kinds}
                taken.append((times[False], times[True]))
    ours, plain = (statistics.median(column) for column in zip(*taken, strict=True))
    print(f"container to /lab, median of {ROUNDS}: with a share {ours:.2f} s, plain JupyterLab {plain:.2f} s")
    return statistics.median(a - b for a, b in taken), "s"
