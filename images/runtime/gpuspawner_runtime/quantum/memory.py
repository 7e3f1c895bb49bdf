"""What a run needs in memory and what there is, before it begins."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuspawner_runtime import limit_file
from gpuspawner_runtime.errors import RuntimeFault

PRECISIONS = ("double", "single")
#: Bytes for each of the 2**qubits amplitudes: the state (16 in double, 8 in single precision) and what a simulator has
#: beside it. Measured at 22 and 24 qubits on the processor as the growth of the peak resident set, with qiskit-aer
#: 0.18.2 and pennylane-lightning 0.45.0 (`python -m tests.bench.quantum_memory`); on cards the same is assumed.
#: Aer hands a state in single precision out in double; Lightning copies a state, and for samples makes a table.
BYTES = {
    ("aer", "double", "state"): 16,
    ("aer", "double", "shots"): 16,
    ("aer", "single", "state"): 24,
    ("aer", "single", "shots"): 8,
    ("lightning", "double", "state"): 32,
    ("lightning", "double", "shots"): 48,
    ("lightning", "single", "state"): 16,
    ("lightning", "single", "shots"): 40,
}
MOST_SHOTS = 2**31 - 1
#: Beyond this no machine that there is holds a state; the sums stay small.
_MOST_QUBITS = 60


@dataclass(frozen=True)
class Room:
    """Memory in bytes, None where it is unknown, and whose it is."""

    bytes: int | None
    whose: str


def needed(qubits: int, simulator: str, precision: str, shots: int | None) -> int:
    """Bytes that a run needs."""
    each = BYTES[simulator, precision, "state" if shots is None else "shots"]
    samples = 8 * qubits * shots if shots is not None and simulator == "lightning" else 0
    return (each << qubits) + samples


def check(qubits: int, simulator: str, precision: str, shots: int | None, device: str) -> tuple[int, Room]:
    """Bytes needed and the room for them. Raises RuntimeFault where there is less."""
    need, room = needed(qubits, simulator, precision, shots), available(device)
    if room.bytes is None or need <= room.bytes:
        return need, room
    most = _most(room.bytes, simulator, precision, shots)
    fits = f"{most} would fit" if most else "not even one would fit"
    other = _most(room.bytes, simulator, "single", shots)
    if other > most:
        fits += f", or {other} with precision='single'"
    raise RuntimeFault(
        f"{qubits} qubits need {_text(need)} in {simulator} ({precision} precision), "
        f"and {room.whose} has {_text(room.bytes)} available: {fits}",
        code="memory",
        field="circuit",
        given=qubits,
        allowed=f"at most {most} qubits",
    )


def largest(
    simulator: str = "aer", *, precision: str = "double", shots: int | None = None, device: str = "cpu"
) -> int | None:
    """How many qubits fit now; None where the memory is unknown."""
    for field, value, allowed in (
        ("simulator", simulator, ("aer", "lightning")),
        ("precision", precision, PRECISIONS),
        ("device", device, ("cpu", "gpu")),
    ):
        one_of(field, value, allowed)
    whole("shots", shots, 1, MOST_SHOTS)
    room = available(device)
    return None if room.bytes is None else _most(room.bytes, simulator, precision, shots)


def whole(field: str, given: Any, least: int, most: int) -> None:
    """Raises RuntimeFault unless what was given is a whole number within these, or None."""
    if given is None:
        return
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise RuntimeFault(
            f"{field} is {given!r}: it must be a whole number from {least} to {most}, or None",
            field=field,
            given=given,
            allowed=f"{least} to {most}, or None",
        )


def one_of(field: str, given: Any, allowed: tuple[str, ...]) -> None:
    """Raises RuntimeFault unless what was given is one of those allowed."""
    if not isinstance(given, str) or given not in allowed:
        message = f"{field} is {given!r}: it must be one of {', '.join(allowed)}"
        raise RuntimeFault(message, field=field, given=given, allowed=list(allowed))


def available(device: str, root: Path = Path("/")) -> Room:
    """What is free: on a card by the share and NVML, else by the container's limits and the machine."""
    return _on_card() if device == "gpu" else _on_processor(root)


def _most(room: int, simulator: str, precision: str, shots: int | None) -> int:
    fitting = [n for n in range(1, _MOST_QUBITS) if needed(n, simulator, precision, shots) <= room]
    return max(fitting, default=0)


def _on_card() -> Room:
    """Simulators use the process's first card."""
    found = limit_file.find()
    shares = found.shares() if found is not None else None
    share = shares[0].memory_bytes if shares else None
    free = _free_by_nvml(shares[0].uuid if shares else None)
    known = [each for each in (share, free) if each is not None]
    return Room(min(known, default=None), "the share of the card" if share is not None else "the card")


def _free_by_nvml(uuid: str | None) -> int | None:
    try:
        nvml: Any = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or no driver: NVML's errors have no type where its package is not there
        return None
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid) if uuid else nvml.nvmlDeviceGetHandleByIndex(0)
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).free)
    except nvml.NVMLError:
        return None


def _on_processor(root: Path) -> Room:
    rooms = [room for room in (_machine(root), *_containers(root)) if room.bytes is not None]
    return min(rooms, key=lambda room: room.bytes or 0, default=Room(None, "this machine"))


def _machine(root: Path) -> Room:
    for line in _read(root / "proc/meminfo").splitlines():
        words = line.split()
        if words[:1] == ["MemAvailable:"]:
            return Room(1024 * int(words[1]), "this machine")
    return Room(None, "this machine")


def _containers(root: Path) -> list[Room]:
    """Of this process's control group and those above it; in a container the group's own folder is the root."""
    path = next(
        (line[3:] for line in _read(root / "proc/self/cgroup").splitlines() if line.startswith("0::")), "/"
    ).strip("/")
    top = root / "sys/fs/cgroup"
    places = [top.joinpath(*path.split("/")[:depth]) for depth in range(len(path.split("/")) + 1)]
    rooms = []
    for place in dict.fromkeys(places):
        limit, used = _number(place / "memory.max"), _number(place / "memory.current")
        if limit is not None and used is not None:
            # pages of files that the kernel drops when it needs the memory
            stat = dict(line.split() for line in _read(place / "memory.stat").splitlines() if len(line.split()) == 2)
            dropped = int(stat.get("inactive_file", 0))
            rooms.append(Room(max(0, limit - max(0, used - dropped)), "this container"))
    return rooms


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _text(size: int) -> str:
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:,.1f} {name}"
    return f"{size} bytes"
