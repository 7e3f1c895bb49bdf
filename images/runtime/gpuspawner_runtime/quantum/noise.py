"""Noise by a small standard set of channels.

After each gate each of its qubits goes through the channels, in the order of CHANNELS; gates that are not in ONE or TWO
are written in those first. Kraus operators as in Nielsen and Chuang, Quantum Computation and Quantum
Information, chapter 8.3; depolarizing is `(1 - p) rho + p I/2`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.quantum.load import load

#: The channels, each with a probability from 0 to 1. `readout`: a measured bit is the other one.
CHANNELS = ("depolarizing", "bit_flip", "phase_flip", "amplitude_damping", "phase_damping", "readout")
ONE = ("u", "p", "x", "y", "z", "h", "s", "sdg", "t", "tdg", "sx", "sxdg", "rx", "ry", "rz", "id")
TWO = ("cx", "cy", "cz", "cp", "swap", "rxx", "ryy", "rzz", "crx", "cry", "crz")


@dataclass(frozen=True)
class Noise:
    """What goes wrong, as probabilities from 0 to 1; 0 is none of it."""

    depolarizing: float = 0.0
    bit_flip: float = 0.0
    phase_flip: float = 0.0
    amplitude_damping: float = 0.0
    phase_damping: float = 0.0
    readout: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
                raise RuntimeFault(
                    f"noise[{name!r}] is {value!r}: it must be a probability from 0 to 1",
                    field=f"noise.{name}",
                    given=value,
                    allowed="0 to 1",
                )


def noise_of(given: Noise | Mapping[str, float] | None) -> Noise | None:
    """Noise of what was given; None where nothing goes wrong."""
    if given is None:
        return None
    if not isinstance(given, Noise):
        if not isinstance(given, Mapping):
            message = f"noise is a {type(given).__name__}: it must be a dict of {', '.join(CHANNELS)}"
            raise RuntimeFault(message, field="noise", given=type(given).__name__, allowed=list(CHANNELS))
        unknown = [str(name) for name in given if name not in CHANNELS]
        if unknown:
            raise RuntimeFault(
                f"noise has {unknown[0]!r}: it knows {', '.join(CHANNELS)}",
                field="noise",
                given=unknown[0],
                allowed=list(CHANNELS),
            )
        given = Noise(**given)
    return given if any(asdict(given).values()) else None


def aer_model(noise: Noise) -> Any:
    """The same as a noise model of Aer."""
    aer = load("qiskit_aer.noise")
    channels = [
        make(value)
        for value, make in (
            (noise.depolarizing, lambda p: aer.depolarizing_error(p, 1)),
            (noise.bit_flip, lambda p: aer.pauli_error([("X", p), ("I", 1 - p)])),
            (noise.phase_flip, lambda p: aer.pauli_error([("Z", p), ("I", 1 - p)])),
            (noise.amplitude_damping, aer.amplitude_damping_error),
            (noise.phase_damping, aer.phase_damping_error),
        )
        if value
    ]
    model = aer.NoiseModel(basis_gates=[*ONE, *TWO])
    if channels:
        error = channels[0]
        for channel in channels[1:]:
            error = error.compose(channel)
        model.add_all_qubit_quantum_error(error, list(ONE))
        model.add_all_qubit_quantum_error(error.tensor(error), list(TWO))
    if noise.readout:
        right = 1 - noise.readout
        model.add_all_qubit_readout_error(aer.ReadoutError([[right, noise.readout], [noise.readout, right]]))
    return model
