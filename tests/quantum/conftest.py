"""For the tests of quantum circuits, in an environment of their own with the simulators: `make test-quantum`."""

from __future__ import annotations

import os
from importlib.util import find_spec

if find_spec("qiskit_aer") is None or find_spec("pennylane_lightning") is None:  # the hub's environment
    collect_ignore_glob = ["*"]

# Threads that wait for each other are slow where several processes share the processors, as tests do.
os.environ.setdefault("OMP_NUM_THREADS", "1")
