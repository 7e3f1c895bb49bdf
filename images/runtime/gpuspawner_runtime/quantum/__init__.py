"""One circuit, whichever simulator is there: qiskit-aer or pennylane-lightning.

    from gpuspawner_runtime import quantum

    result = quantum.run('OPENQASM 3.0; include "stdgates.inc"; qubit[2] q; h q[0]; cx q[0], q[1];')
    result.state      # amplitudes, 2**n complex numbers
    quantum.run(circuit, shots=1000, seed=7, noise={"depolarizing": 0.01}).counts

Qubit order, the same for both simulators: qubit 0 is the lowest bit of an amplitude's index and the rightmost character
of a bit string. Importing this imports neither a simulator nor NumPy.
"""

from __future__ import annotations

from gpuspawner_runtime.quantum.circuits import circuit, to_qasm
from gpuspawner_runtime.quantum.memory import largest
from gpuspawner_runtime.quantum.noise import CHANNELS, Noise
from gpuspawner_runtime.quantum.runs import Result, run, simulators

__all__ = ["CHANNELS", "Noise", "Result", "circuit", "largest", "run", "simulators", "to_qasm"]
