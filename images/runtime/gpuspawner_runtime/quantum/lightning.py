"""Circuits on pennylane-lightning. Its first wire is the highest bit, so qubit k is its wire n - 1 - k."""

from __future__ import annotations

import cmath
import functools
from collections import Counter
from importlib.util import find_spec
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.quantum.circuits import Parts, lowered
from gpuspawner_runtime.quantum.load import load

#: Names of gates in qiskit, and of the same in PennyLane.
_GATES = {
    "id": "Identity",
    "x": "PauliX",
    "y": "PauliY",
    "z": "PauliZ",
    "h": "Hadamard",
    "s": "S",
    "t": "T",
    "sx": "SX",
    "p": "PhaseShift",
    "rx": "RX",
    "ry": "RY",
    "rz": "RZ",
    "cx": "CNOT",
    "cy": "CY",
    "cz": "CZ",
    "cp": "ControlledPhaseShift",
    "swap": "SWAP",
    "rxx": "IsingXX",
    "ryy": "IsingYY",
    "rzz": "IsingZZ",
    "crx": "CRX",
    "cry": "CRY",
    "crz": "CRZ",
    "ccx": "Toffoli",
    "cswap": "CSWAP",
}


@functools.cache
def has_gpu() -> bool:
    """Whether Lightning's package for cards is there and finds one."""
    if find_spec("pennylane_lightning") is None or find_spec("pennylane_lightning.lightning_gpu_ops") is None:
        return False
    try:
        load("pennylane").device("lightning.gpu", wires=1)
    except Exception:  # its own errors differ by version and by what of CUDA is missing
        return False
    return True


def state(parts: Parts, precision: str, device: str) -> tuple[Any, str]:
    """Amplitudes, and the device they were computed on."""
    pennylane = load("pennylane")
    found, phase = _ran(parts, pennylane.state(), precision, device)
    if phase:
        found *= cmath.exp(1j * phase)
    return found, device


def counts(parts: Parts, shots: int, seed: int | None, precision: str, device: str) -> tuple[dict[str, int], str]:
    """How often each bit string was measured, and the device."""
    qubits = parts.gates.num_qubits
    measured = parts.measured or {qubit: qubit for qubit in range(qubits)}
    length = parts.clbits if parts.measured else qubits
    wires = [qubits - 1 - qubit for qubit in measured.values()]
    rows, _ = _ran(parts, load("pennylane").sample(wires=wires), precision, device, shots, seed)
    found: Counter[str] = Counter()
    for row, count in zip(*load("numpy").unique(rows.reshape(shots, -1), axis=0, return_counts=True), strict=True):
        bits = ["0"] * length
        for clbit, bit in zip(measured, row, strict=True):
            bits[length - 1 - clbit] = str(int(bit))
        found["".join(bits)] += int(count)
    return dict(found), device


def _ran(
    parts: Parts, measurement: Any, precision: str, device: str, shots: int | None = None, seed: int | None = None
) -> tuple[Any, float]:
    """What was measured, and the global phase that Lightning does not have."""
    pennylane, numpy = load("pennylane"), load("numpy")
    lower = lowered(parts.gates, _GATES)
    made = pennylane.device(
        "lightning.gpu" if device == "gpu" else "lightning.qubit",
        wires=lower.num_qubits,
        c_dtype=numpy.complex64 if precision == "single" else numpy.complex128,
        seed=seed,
    )
    tape = pennylane.tape.QuantumScript(_operations(lower), [measurement], shots=shots)
    try:
        (found,) = pennylane.execute([tape], made, diff_method=None)
    except (RuntimeError, ValueError, pennylane.exceptions.QuantumFunctionError) as error:
        message = f"lightning could not run the circuit: {error}"
        raise RuntimeFault(message, code="simulator", field="circuit") from error
    return numpy.asarray(found), float(lower.global_phase)


def _operations(lower: Any) -> list[Any]:
    pennylane = load("pennylane")
    last = lower.num_qubits - 1
    wires = {qubit: last - index for index, qubit in enumerate(lower.qubits)}
    kinds = {name: getattr(pennylane, its) for name, its in _GATES.items()}
    return [
        kinds[each.operation.name](*map(float, each.operation.params), wires=[wires[bit] for bit in each.qubits])
        for each in lower.data
    ]
