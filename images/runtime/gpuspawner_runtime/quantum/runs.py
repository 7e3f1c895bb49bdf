"""One circuit run: which simulator, where, whether it fits, and what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.quantum import aer, lightning, memory
from gpuspawner_runtime.quantum.circuits import Parts, circuit, parts
from gpuspawner_runtime.quantum.noise import Noise, noise_of

SIMULATORS = ("aer", "lightning")
_PACKAGES = {"aer": "qiskit_aer", "lightning": "pennylane_lightning"}
_SEEDS = 2**31


@dataclass(frozen=True)
class Result:
    """What came out, and how.

    `state`: complex amplitudes, shape (2**qubits,), without shots. `counts`: bit string to number, with shots; the
    classical bits if the circuit measures, else all qubits. `device`: `cpu` or `gpu`, where it did run.
    `needed_bytes`, `available_bytes` (None: unknown): what was checked before.
    """

    qubits: int
    simulator: str
    device: str
    precision: str
    needed_bytes: int
    available_bytes: int | None
    state: Any = None
    counts: dict[str, int] | None = None
    shots: int | None = None
    seed: int | None = None

    def __str__(self) -> str:
        what = "state" if self.shots is None else f"{self.shots} shots"
        return f"{self.qubits} qubits, {what}: {self.simulator} on {self.device}, {self.precision} precision"


def simulators() -> tuple[str, ...]:
    """Those that are installed."""
    return tuple(name for name in SIMULATORS if find_spec(_PACKAGES[name]) is not None)


def run(
    given: Any,
    *,
    shots: int | None = None,
    seed: int | None = None,
    noise: Noise | Mapping[str, float] | None = None,
    simulator: str = "auto",
    device: str = "auto",
    precision: str = "double",
    parameters: Mapping[str, float] | None = None,
) -> Result:
    """Run a circuit (a qiskit QuantumCircuit or OpenQASM 3): amplitudes without `shots`, else counts.

    With the same `seed`, simulator and versions the counts are the same. `auto` takes a card where a simulator can use
    one, and Aer before Lightning. Raises RuntimeFault for anything that cannot be, before anything is computed; its
    code is `memory` where the state does not fit into the share or the container.
    """
    memory.one_of("simulator", simulator, ("auto", *SIMULATORS))
    memory.one_of("device", device, ("auto", "cpu", "gpu"))
    memory.one_of("precision", precision, memory.PRECISIONS)
    memory.whole("shots", shots, 1, memory.MOST_SHOTS)
    memory.whole("seed", seed, 0, _SEEDS - 1)
    wrong = noise_of(noise)
    made = circuit(given, parameters)
    taken = parts(made)
    if shots is None:
        _only_with_shots(wrong, taken)
    name, where = _chosen(simulator, device, wrong, taken)
    need, room = memory.check(made.num_qubits, name, precision, shots, where)
    state = counts = None
    if name == "aer":
        if shots is None:
            state, ran_on = aer.state(taken, precision, where)
        else:
            counts, ran_on = aer.counts(made, taken, shots, seed, precision, where, wrong)
    elif shots is None:
        state, ran_on = lightning.state(taken, precision, where)
    else:
        counts, ran_on = lightning.counts(taken, shots, seed, precision, where)
    return Result(made.num_qubits, name, ran_on, precision, need, room.bytes, state, counts, shots, seed)


def _only_with_shots(noise: Noise | None, taken: Parts) -> None:
    why = "with noise" if noise is not None else "where a circuit measures, resets or decides before its end"
    if noise is not None or taken.dynamic:
        message = f"shots is None: {why} there is no one state, so give a number of shots"
        raise RuntimeFault(message, field="shots", given=None, allowed="a whole number from 1")


def _chosen(simulator: str, device: str, noise: Noise | None, taken: Parts) -> tuple[str, str]:
    """Simulator and device. Raises RuntimeFault where there is none for this circuit."""
    there = simulators()
    if not there or simulator not in ("auto", *there):
        missing = simulator if simulator != "auto" else "no simulator"
        raise RuntimeFault(
            f"{missing} is {'not ' if simulator != 'auto' else ''}installed: pip install 'gpuspawner-runtime[quantum]'",
            code="not-installed",
            field="simulator",
            given=simulator,
            allowed=["auto", *there],
        )
    able = [name for name in there if name == "aer" or (noise is None and not taken.dynamic)]
    wanted = [name for name in able if simulator in ("auto", name)]
    if not wanted:
        what = "noise" if noise is not None else "measurement, reset or decision before the end"
        message = f"lightning has no {what} here: use simulator='aer'"
        raise RuntimeFault(message, field="simulator", given=simulator, allowed=["aer"])
    cards = [name for name in wanted if device != "cpu" and (aer if name == "aer" else lightning).has_gpu()]
    if cards:
        return cards[0], "gpu"
    if device == "gpu":
        raise RuntimeFault(
            f"device is 'gpu': none of {', '.join(wanted)} is built for cards here and finds one",
            field="device",
            given=device,
            allowed=["auto", "cpu"],
        )
    return wanted[0], "cpu"
