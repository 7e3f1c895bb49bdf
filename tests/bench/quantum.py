"""What `gpuspawner_runtime.quantum` adds to a simulator: the same circuit by it and by the simulator's own interface.

20 qubits, 8 layers of rotations and of CNOTs in a chain. By turns, each of the two first as often; the median of the
ratios of neighbours. Building the circuit does not count, what is done to run it does: for Lightning that is the
translation to PennyLane, against operations that are in PennyLane already.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pennylane
from gpuspawner_runtime import quantum
from qiskit import QuantumCircuit
from qiskit_aer import AerSimulator

QUBITS, LAYERS, ROUNDS = 20, 8, 10
ANGLES = np.random.default_rng(0).uniform(-3, 3, (LAYERS, QUBITS))


def _circuit() -> QuantumCircuit:
    circuit = QuantumCircuit(QUBITS)
    for layer in ANGLES:
        for qubit, angle in enumerate(layer):
            circuit.rx(float(angle), qubit)
        for qubit in range(QUBITS - 1):
            circuit.cx(qubit, qubit + 1)
    return circuit


def _operations() -> list[Any]:
    made: list[Any] = []
    for layer in ANGLES:
        made += [pennylane.RX(float(angle), QUBITS - 1 - qubit) for qubit, angle in enumerate(layer)]
        made += [pennylane.CNOT([QUBITS - 1 - qubit, QUBITS - 2 - qubit]) for qubit in range(QUBITS - 1)]
    return made


def _aer(circuit: QuantumCircuit) -> Callable[[], Any]:
    saved = circuit.copy()
    saved.save_statevector()

    def direct() -> Any:
        simulator = AerSimulator(method="statevector")
        return np.asarray(simulator.run(saved, shots=1).result().data(0)["statevector"])

    return direct


def _lightning() -> Callable[[], Any]:
    operations = _operations()

    def direct() -> Any:
        device = pennylane.device("lightning.qubit", wires=QUBITS)
        tape = pennylane.tape.QuantumScript(operations, [pennylane.state()])
        return pennylane.execute([tape], device, diff_method=None)[0]

    return direct


def _ratio(name: str, direct: Callable[[], Any], circuit: QuantumCircuit) -> float:
    def mine() -> Any:
        return quantum.run(circuit, simulator=name).state

    def timed(call: Callable[[], Any]) -> float:
        started = time.perf_counter()
        call()
        return time.perf_counter() - started

    np.testing.assert_allclose(mine(), direct(), atol=1e-10)
    pairs = []
    for number in range(ROUNDS):
        if number % 2:
            adapter, alone = timed(mine), timed(direct)
        else:
            alone, adapter = timed(direct), timed(mine)
        pairs.append((adapter, alone))
    ratio = statistics.median(adapter / alone for adapter, alone in pairs)
    adapter, alone = (1000 * statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"{name:<10} {adapter:8.1f} ms by the adapter, {alone:8.1f} ms directly, ratio {ratio:.3f}")
    return ratio


if __name__ == "__main__":
    circuit = _circuit()
    print(f"{QUBITS} qubits, {len(circuit.data)} gates, on the processor")
    print(max(_ratio("aer", _aer(circuit), circuit), _ratio("lightning", _lightning(), circuit)), "ratio")
