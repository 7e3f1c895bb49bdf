"""Shots, seeds, noise, OpenQASM 3, memory, and what is refused."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpuspawner_runtime import limit_file, quantum
from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.quantum import memory
from qiskit import ClassicalRegister, QuantumCircuit, QuantumRegister
from qiskit.circuit import Parameter

EACH = pytest.mark.parametrize("simulator", ["aer", "lightning"])
BELL = 'OPENQASM 3.0; include "stdgates.inc"; qubit[2] q; bit[2] c; h q[0]; cx q[0], q[1]; c = measure q;'
SHOTS = 20_000


def refused(field: str, *given: Any, **how: Any) -> RuntimeFault:
    with pytest.raises(RuntimeFault) as caught:
        quantum.run(*given, **how)
    assert caught.value.field == field, caught.value.message
    assert caught.value.message
    return caught.value


def near(counts: dict[str, int], bits: str, probability: float) -> None:
    """Within five standard deviations; seeds are fixed, so it is the same in every run."""
    deviation = math.sqrt(probability * (1 - probability) / SHOTS) + 1e-9
    assert abs(counts.get(bits, 0) / SHOTS - probability) <= 5 * deviation, (counts, probability)


@EACH
def test_counts_are_those_of_the_amplitudes_and_the_same_for_a_seed(simulator: str) -> None:
    one, again, other = (quantum.run(BELL, shots=SHOTS, seed=seed, simulator=simulator) for seed in (1, 1, 2))
    assert one.counts is not None
    assert one.state is None
    assert one.counts == again.counts != other.counts
    assert set(one.counts) == {"00", "11"}
    assert sum(one.counts.values()) == SHOTS
    near(one.counts, "00", 0.5)
    assert str(one) == f"2 qubits, {SHOTS} shots: {simulator} on cpu, double precision"


@EACH
def test_the_first_qubit_is_the_last_character(simulator: str) -> None:
    circuit = QuantumCircuit(3)
    circuit.x(0)
    assert quantum.run(circuit, shots=5, simulator=simulator).counts == {"001": 5}
    assert quantum.run(circuit, simulator=simulator).state[1] == pytest.approx(1)


@EACH
def test_bits_are_those_that_the_circuit_writes(simulator: str) -> None:
    q, a, b = QuantumRegister(3), ClassicalRegister(2, "a"), ClassicalRegister(2, "b")
    circuit = QuantumCircuit(q, a, b)
    circuit.x(2)
    circuit.measure(2, b[0])
    circuit.measure(0, a[1])
    assert quantum.run(circuit, shots=4, simulator=simulator).counts == {"0100": 4}
    unmeasured = QuantumCircuit(q, a)
    unmeasured.x(1)
    assert quantum.run(unmeasured, shots=4, simulator=simulator).counts == {"010": 4}


def test_what_a_circuit_decides_in_its_middle_is_run_by_aer() -> None:
    text = BELL.replace("c = measure q;", "c[0] = measure q[0]; if (c[0]) { x q[1]; } c[1] = measure q[1];")
    done = quantum.run(text, shots=200, seed=3)
    assert done.simulator == "aer"
    assert set(done.counts or {}) == {"00", "01"}
    assert refused("simulator", text, shots=200, simulator="lightning").allowed == ["aer"]
    refused("shots", text)


PLAIN, SUPERPOSED = QuantumCircuit(1, 1), QuantumCircuit(1, 1)
PLAIN.x(0)
PLAIN.measure(0, 0)
SUPERPOSED.h(0)
SUPERPOSED.h(0)
SUPERPOSED.measure(0, 0)


@pytest.mark.parametrize(
    ("circuit", "noise", "ones"),
    [
        (PLAIN, {"bit_flip": 0.2}, 0.8),
        (PLAIN, {"depolarizing": 0.2}, 0.9),
        (PLAIN, {"amplitude_damping": 0.3}, 0.7),
        (PLAIN, {"readout": 0.1}, 0.9),
        (PLAIN, {"bit_flip": 0.2, "readout": 0.1}, 0.8 * 0.9 + 0.2 * 0.1),
        (PLAIN, {"phase_flip": 0.4}, 1.0),
        (SUPERPOSED, {"phase_flip": 0.2}, 0.2),
        (SUPERPOSED, {"phase_damping": 0.36}, (1 - math.sqrt(1 - 0.36)) / 2),
        (SUPERPOSED, {"depolarizing": 0.2}, (1 - 0.8**2) / 2),
    ],
)
def test_noise_is_that_of_its_channel(circuit: QuantumCircuit, noise: dict[str, float], ones: float) -> None:
    done = quantum.run(circuit, shots=SHOTS, seed=11, noise=noise)
    assert done.simulator == "aer"
    near(done.counts or {}, "1", ones)


def test_noise_comes_after_a_gate_on_each_of_its_qubits() -> None:
    circuit = QuantumCircuit(2)
    circuit.swap(0, 1)
    counts = quantum.run(circuit, shots=SHOTS, seed=5, noise=quantum.Noise(bit_flip=0.3)).counts or {}
    for bits, probability in (("00", 0.49), ("01", 0.21), ("10", 0.21), ("11", 0.09)):
        near(counts, bits, probability)


def test_noise_that_cannot_be_is_refused() -> None:
    assert refused("simulator", BELL, shots=9, noise={"bit_flip": 0.1}, simulator="lightning").allowed == ["aer"]
    refused("shots", BELL, noise={"bit_flip": 0.1})
    assert refused("noise", BELL, shots=9, noise={"rust": 0.1}).allowed == list(quantum.CHANNELS)
    assert refused("noise.readout", BELL, shots=9, noise={"readout": 1.1}).given == 1.1
    refused("noise", BELL, shots=9, noise=0.1)
    assert quantum.run(BELL, noise={"bit_flip": 0}).state is not None


@EACH
def test_openqasm_comes_out_as_it_went_in(simulator: str) -> None:
    circuit = QuantumCircuit(3)
    circuit.h(0)
    circuit.cp(0.3, 0, 2)
    circuit.ccx(0, 1, 2)
    circuit.u(0.1, 0.2, 0.3, 1)
    text = quantum.to_qasm(circuit)
    assert text.startswith("OPENQASM 3")
    one, other = (quantum.run(each, simulator=simulator).state for each in (circuit, text))
    np.testing.assert_allclose(one, other, atol=1e-12)
    assert quantum.to_qasm(text) == quantum.to_qasm(quantum.to_qasm(text))


@EACH
def test_parameters_are_bound(simulator: str) -> None:
    angle = Parameter("theta")
    circuit = QuantumCircuit(1)
    circuit.ry(angle, 0)
    for given in (circuit, quantum.to_qasm(circuit)):
        found = quantum.run(given, parameters={"theta": 0.6}, simulator=simulator).state
        np.testing.assert_allclose(found, [math.cos(0.3), math.sin(0.3)], atol=1e-12)
    assert circuit.num_parameters == 1
    assert refused("parameters", circuit).allowed == ["theta"]
    assert refused("parameters", circuit, parameters={"teta": 1.0}).given == "teta"
    refused("parameters", circuit, parameters={"theta": math.nan})


@pytest.mark.parametrize(
    ("field", "given", "how"),
    [
        ("circuit", "qubit q; h q", {}),
        ("circuit", 'OPENQASM 3.0; include "stdgates.inc"; qubit q; wobble q;', {}),
        ("circuit", 7, {}),
        ("circuit", None, {}),
        ("circuit", QuantumCircuit(), {}),
        ("shots", BELL, {"shots": 0}),
        ("shots", BELL, {"shots": True}),
        ("shots", BELL, {"shots": 10.0}),
        ("seed", BELL, {"shots": 1, "seed": -1}),
        ("simulator", BELL, {"simulator": "abacus"}),
        ("device", BELL, {"device": "tpu"}),
        ("precision", BELL, {"precision": "half"}),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(field: str, given: Any, how: dict[str, Any]) -> None:
    assert refused(field, given, **how).allowed


def test_what_was_given_is_not_changed() -> None:
    circuit = quantum.circuit(BELL)
    before = quantum.to_qasm(circuit)
    for how in ({}, {"shots": 3}, {"shots": 3, "noise": {"bit_flip": 0.1}}, {"simulator": "lightning"}):
        quantum.run(circuit, **how)
    assert quantum.to_qasm(circuit) == before


# -- memory ------------------------------------------------------------------------------------------------------


@EACH
def test_a_state_that_does_not_fit_is_refused_before_it_runs(simulator: str) -> None:
    circuit = QuantumCircuit(50)
    circuit.h(range(50))
    fault = refused("circuit", circuit, simulator=simulator)
    assert (fault.code, fault.given) == ("memory", 50)
    most = quantum.largest(simulator)
    assert most is not None
    assert 1 <= most < 50
    assert f"{2**50 * (16 if simulator == 'aer' else 32) / 1e9:,.1f} GB" in fault.message
    assert "would fit" in fault.message


@pytest.mark.parametrize("shots", [0, -1, True, 1.5, "10", 2**31])
def test_how_much_fits_is_asked_with_shots_that_can_be(shots: object) -> None:
    with pytest.raises(RuntimeFault, match="shots is"):
        quantum.largest(shots=shots)
    assert quantum.largest("lightning", shots=10**9) < quantum.largest("lightning", shots=1)


def machine(root: Path, available: int, limits: dict[str, tuple[str, int, int]]) -> Path:
    """A root with what the kernel says: bytes available; by group its limit, bytes used, of them pages of files."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {available // 1024} kB\n")
    (root / "proc/self/cgroup").write_text("0::/a/b\n")
    for group, (limit, used, files) in limits.items():
        place = root / "sys/fs/cgroup" / group
        place.mkdir(parents=True, exist_ok=True)
        (place / "memory.max").write_text(limit)
        (place / "memory.current").write_text(str(used))
        (place / "memory.stat").write_text(f"anon 1\ninactive_file {files}\n")
    return root


def test_the_tightest_limit_counts(tmp_path: Path) -> None:
    groups = {"a": ("8192", 1024, 24), "a/b": ("max", 900, 0)}
    assert memory.available("cpu", machine(tmp_path / "1", 2**20, groups)) == memory.Room(7192, "this container")
    assert memory.available("cpu", machine(tmp_path / "2", 4096, groups)) == memory.Room(4096, "this machine")
    assert memory.available("cpu", machine(tmp_path / "3", 2**20, {"": ("3000", 9000, 0)})).bytes == 0
    assert memory.available("cpu", tmp_path / "none").bytes is None


def test_the_share_counts_on_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "limit"
    place.write_bytes(limit(2**30))
    monkeypatch.setenv("GPUSPAWNER_LIMITS", str(place))
    room = memory.available("gpu")
    assert room.whose == "the share of the card"
    assert room.bytes is not None
    assert room.bytes <= 2**30
    with pytest.raises(
        RuntimeFault, match=r"27 qubits need 2\.1 GB .* the share of the card has .* available"
    ) as caught:
        memory.check(27, "aer", "double", None, "gpu")
    assert caught.value.code == "memory"


def limit(size: int) -> bytes:
    """A limit file of one card with a share of so many bytes (docs/reference/limit-file.md)."""
    entry = struct.pack("=16sIIQQII", uuid.UUID(int=1).bytes, 1, 1, size, 0, 0, 0)
    body = struct.pack("=Q", 0) + struct.pack("=II8x", 1, 0) + entry + bytes(15 * len(entry))
    copy = body[:8] + struct.pack("=Q", limit_file._fnv(body)) + body[8:]
    return (struct.pack("=8sIIQ", b"GPUSLIMT", 2, 4096, 0).ljust(1024, b"\0") + copy).ljust(4096, b"\0")


def test_importing_it_imports_no_simulator() -> None:
    code = (
        "import sys; from gpuspawner_runtime import quantum; sys.exit(bool({'numpy', 'qiskit'} & sys.modules.keys()))"
    )
    paths = str(Path(limit_file.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={"PYTHONPATH": paths})


def test_a_card_that_is_not_there_is_refused() -> None:
    if quantum.runs.aer.has_gpu() or quantum.runs.lightning.has_gpu():
        pytest.skip("a simulator here can use a card")
    assert refused("device", BELL, device="gpu").allowed == ["auto", "cpu"]


@EACH
def test_a_simulator_that_is_not_installed_is_said(simulator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuspawner_runtime.quantum.runs.simulators", lambda: ())
    fault = refused("simulator", BELL, simulator=simulator)
    assert fault.code == "not-installed"
    assert f"{simulator} is not installed: pip install" in fault.message
