"""For the tests of the runtime. They run in its own environment, with PyTorch: `make test-runtime`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from runtime.trainings import Trainings

ROOT = Path(__file__).parents[2]
#: What processes that tests start find on their path.
PATHS = [str(ROOT / "images" / "runtime"), str(ROOT / "tests")]

if find_spec("torch") is None:  # the hub's environment: `tools/test` runs these tests apart
    collect_ignore_glob = ["*"]

#: Where uv keeps what it has; tests have homes of their own.
os.environ.setdefault("GPUSPAWNER_TEST_HOME", os.environ.get("HOME", ""))
# Started in the background of a shell, this process would ignore Ctrl-C, and so would all that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Threads that wait for each other are slow where several processes share the processors, as tests do.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for each test: state files, checkpoints and caches go there."""
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    for name in ("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return place


@pytest.fixture(scope="session")
def trainings() -> Iterator[Trainings]:
    """Programs in processes of their own, with PyTorch imported already."""
    started = Trainings()
    yield started
    started.end()
