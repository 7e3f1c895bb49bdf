"""Run inside the image: not as root, Lab and runtime are there, and both simulators agree with the closed form."""

import importlib.metadata
import math
import os

from gpuspawner_runtime import quantum

assert os.geteuid() == 1000, os.geteuid()
for package in ("jupyterlab", "gpuspawner-lab", "gpuspawner-runtime"):
    print(package, importlib.metadata.version(package))
assert quantum.simulators() == ("aer", "lightning")
bell = 'OPENQASM 3.0; include "stdgates.inc"; qubit[2] q; h q[0]; cx q[0], q[1];'
for simulator in quantum.simulators():
    done = quantum.run(bell, simulator=simulator)
    expected = [math.sqrt(0.5), 0, 0, math.sqrt(0.5)]
    assert all(abs(one - other) < 1e-12 for one, other in zip(done.state, expected, strict=True)), done.state
    print(done)
