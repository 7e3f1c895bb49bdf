"""For the tests of the worked examples, in an environment of their own: `make test-examples`."""

from __future__ import annotations

import os
from importlib.util import find_spec

if find_spec("torch") is None or find_spec("skimage") is None:  # the hub's environment
    collect_ignore_glob = ["*"]

# Threads that wait for each other are slow where several processes share the processors, as tests do.
os.environ.setdefault("OMP_NUM_THREADS", "2")
