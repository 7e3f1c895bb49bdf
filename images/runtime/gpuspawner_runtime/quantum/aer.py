"""Circuits on qiskit-aer."""

from __future__ import annotations

import functools
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.quantum.circuits import Parts, lowered
from gpuspawner_runtime.quantum.load import load
from gpuspawner_runtime.quantum.noise import ONE, TWO, Noise, aer_model

NOT_GATES = ("measure", "reset", "barrier", "if_else", "for_loop", "while_loop", "switch_case")


@functools.cache
def has_gpu() -> bool:
    """Whether this Aer was built for cards and finds one."""
    return "GPU" in load("qiskit_aer").AerSimulator().available_devices()


@functools.cache
def _knows() -> frozenset[str]:
    return frozenset(load("qiskit_aer").AerSimulator(method="statevector").operation_names)


def state(parts: Parts, precision: str, device: str) -> tuple[Any, str]:
    """Amplitudes, and the device they were computed on."""
    gates = lowered(parts.gates, _knows()).copy()
    gates.save_statevector()
    done = _ran(_simulator(precision, device), gates, shots=1)
    return load("numpy").asarray(done.data(0)["statevector"]), _device(done)


def counts(
    made: Any, parts: Parts, shots: int, seed: int | None, precision: str, device: str, noise: Noise | None
) -> tuple[dict[str, int], str]:
    """How often each bit string was measured, and the device."""
    if noise is None:
        lower = lowered(made, _knows())
        simulator = _simulator(precision, device)
    else:
        lower = lowered(made, (*ONE, *TWO, *NOT_GATES))
        simulator = _simulator(precision, device, noise_model=aer_model(noise))
    everything = not parts.measured and not parts.dynamic
    if everything:
        lower = lower.copy()
        lower.measure_all()  # into a register that it adds, which is the first in a bit string
    done = _ran(simulator, lower, shots=shots, seed_simulator=seed)
    found = done.get_counts().items()
    return {
        bits.partition(" ")[0] if everything else bits.replace(" ", ""): int(count) for bits, count in found
    }, _device(done)


def _simulator(precision: str, device: str, **options: Any) -> Any:
    return load("qiskit_aer").AerSimulator(method="statevector", precision=precision, device=device.upper(), **options)


def _ran(simulator: Any, lower: Any, **options: Any) -> Any:
    done = simulator.run(lower, **options).result()
    if not done.success:
        words = next((each.status for each in done.results if not each.success), done.status)
        raise RuntimeFault(f"aer could not run the circuit: {words}", code="simulator", field="circuit")
    return done


def _device(done: Any) -> str:
    return str(done.results[0].metadata["device"]).lower()
