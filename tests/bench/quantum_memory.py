"""What each simulator holds in memory for a run, in bytes for each amplitude, beside what the runtime counts.

The growth of a process's peak resident set by a run, a process for each: python -m tests.bench.quantum_memory, in the
environment of tools/quantum-env with images/runtime on PYTHONPATH.
"""

from __future__ import annotations

import resource
import subprocess
import sys

from gpuspawner_runtime import quantum
from gpuspawner_runtime.quantum.memory import BYTES
from qiskit import QuantumCircuit

QUBITS = (22, 24)


def _run(qubits: int, simulator: str, precision: str, kind: str) -> int:
    """The peak, in bytes."""
    circuit = QuantumCircuit(qubits)
    for qubit in range(qubits):
        circuit.ry(0.3 + qubit, qubit)
    for qubit in range(qubits - 1):
        circuit.cx(qubit, qubit + 1)
    shots = None if kind == "state" else 1000
    quantum.run(circuit, simulator=simulator, precision=precision, shots=shots, seed=1)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(words: list[str]) -> None:
    """Without words all of them; with words one, in this process."""
    if words:
        before = _run(3, *words[1:])
        print((_run(int(words[0]), *words[1:]) - before) / 2 ** int(words[0]))
        return
    print(f"{'simulator':<10} {'precision':<9} {'what':<6} {'counted':>7}", *(f"{n:>3} qubits" for n in QUBITS))
    for key, counted in BYTES.items():
        found = []
        for qubits in QUBITS:
            command = [sys.executable, "-m", "tests.bench.quantum_memory", str(qubits), *key]
            found.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]))
        print(f"{key[0]:<10} {key[1]:<9} {key[2]:<6} {counted:>7}", *(f"{each:>10.1f}" for each in found))


if __name__ == "__main__":
    main(sys.argv[1:])
