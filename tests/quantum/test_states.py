"""Amplitudes against closed forms, on each simulator: the same qubit order, phases and precision."""

from __future__ import annotations

import cmath
import inspect
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from gpuspawner_runtime import quantum
from qiskit import QuantumCircuit
from qiskit.synthesis import synth_qft_full

EACH = pytest.mark.parametrize("simulator", ["aer", "lightning"])
TOLERANCE = {"double": 1e-12, "single": 1e-5}


def state(circuit: Any, simulator: str, **how: Any) -> np.ndarray:
    done = quantum.run(circuit, simulator=simulator, **how)
    assert (done.simulator, done.device, done.counts) == (simulator, "cpu", None)
    assert done.state.shape == (2**done.qubits,)
    return done.state


@EACH
@pytest.mark.parametrize("precision", ["double", "single"])
def test_a_ghz_state_has_two_amplitudes(simulator: str, precision: str) -> None:
    circuit = QuantumCircuit(10)
    circuit.h(0)
    for one, other in pairwise(range(10)):
        circuit.cx(one, other)
    expected = np.zeros(1024)
    expected[[0, -1]] = math.sqrt(0.5)
    found = state(circuit, simulator, precision=precision)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE[precision])


@EACH
def test_the_fourier_transform_of_a_basis_state_is_its_roots_of_unity(simulator: str) -> None:
    qubits, basis = 6, 11
    circuit = QuantumCircuit(qubits)
    for bit in range(qubits):
        if basis >> bit & 1:
            circuit.x(bit)
    circuit.compose(synth_qft_full(qubits), inplace=True)
    size = 2**qubits
    expected = [cmath.exp(2j * math.pi * basis * k / size) / math.sqrt(size) for k in range(size)]
    np.testing.assert_allclose(state(circuit, simulator), expected, atol=1e-12)


@EACH
def test_grovers_search_finds_with_the_probability_of_theory(simulator: str) -> None:
    qubits, marked, rounds = 5, 19, 3

    def reflected(circuit: QuantumCircuit, about: int) -> None:
        zeros = [bit for bit in range(qubits) if not about >> bit & 1]
        if zeros:
            circuit.x(zeros)
        circuit.h(qubits - 1)
        circuit.mcx(list(range(qubits - 1)), qubits - 1)
        circuit.h(qubits - 1)
        if zeros:
            circuit.x(zeros)

    circuit = QuantumCircuit(qubits)
    circuit.h(range(qubits))
    for _ in range(rounds):
        reflected(circuit, marked)
        circuit.h(range(qubits))
        reflected(circuit, 0)
        circuit.h(range(qubits))
    expected = math.sin((2 * rounds + 1) * math.asin(2 ** (-qubits / 2))) ** 2
    assert abs(state(circuit, simulator)[marked]) ** 2 == pytest.approx(expected, abs=1e-12)


@EACH
def test_a_w_state_has_one_excitation_everywhere(simulator: str) -> None:
    qubits = 7
    circuit = QuantumCircuit(qubits)
    circuit.x(0)
    for bit in range(1, qubits):  # what is still at bit - 1 goes on, but for its part
        circuit.cry(2 * math.acos(math.sqrt(1 / (qubits - bit + 1))), bit - 1, bit)
        circuit.cx(bit, bit - 1)
    expected = np.zeros(2**qubits)
    expected[[1 << bit for bit in range(qubits)]] = 1 / math.sqrt(qubits)
    np.testing.assert_allclose(state(circuit, simulator), expected, atol=1e-12)


@EACH
@pytest.mark.parametrize("seed", range(3))
def test_a_product_state_is_the_product_with_qubit_0_lowest(simulator: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    circuit, expected = QuantumCircuit(8, global_phase=0.7), np.array([cmath.exp(0.7j)])
    for bit, (theta, phi) in enumerate(random.uniform(0, math.pi, (8, 2))):
        circuit.ry(theta, bit)
        circuit.rz(phi, bit)
        one = [math.cos(theta / 2) * cmath.exp(-0.5j * phi), math.sin(theta / 2) * cmath.exp(0.5j * phi)]
        expected = np.kron(one, expected)
    np.testing.assert_allclose(state(circuit, simulator), expected, atol=1e-12)


ONE = ["id", "x", "y", "z", "h", "s", "sdg", "t", "tdg", "sx", "sxdg", "p:1", "rx:1", "ry:1", "rz:1", "u:3"]
TWO = ["cx", "cy", "cz", "ch", "cp:1", "swap", "iswap", "ecr", "rxx:1", "ryy:1", "rzz:1", "crx:1", "cry:1", "crz:1"]
GATES = [*ONE, *TWO, "ccx", "cswap"]


@EACH
def test_every_gate_is_its_matrix(simulator: str) -> None:
    """All of them in a row, against their matrices multiplied here."""
    random = np.random.default_rng(5)
    circuit = QuantumCircuit(3)
    circuit.ry(0.4, 0)
    circuit.u(1.1, 0.3, -0.8, 1)
    circuit.ry(2.0, 2)
    for word in GATES:
        name, _, angles = word.partition(":")
        of = getattr(QuantumCircuit(3), name)
        qubits = next(n for n in (1, 2, 3) if _takes(of, int(angles or 0) + n))
        chosen = [int(each) for each in random.permutation(3)[:qubits]]
        getattr(circuit, name)(*random.uniform(-3, 3, int(angles or 0)), *chosen)
    expected = np.zeros(8, complex)
    expected[0] = 1
    for each in circuit.data:
        expected = _applied(each.operation.to_matrix(), [circuit.find_bit(bit).index for bit in each.qubits], expected)
    np.testing.assert_allclose(state(circuit, simulator), expected, atol=1e-12)


def _takes(gate: Any, arguments: int) -> bool:
    needed = [each for each in inspect.signature(gate).parameters.values() if each.default is each.empty]
    return len(needed) == arguments


def _applied(matrix: np.ndarray, qubits: list[int], state: np.ndarray) -> np.ndarray:
    """Index by index: the lowest bit of the matrix's index is the first qubit."""
    result = np.zeros_like(state)
    for index, amplitude in enumerate(state):
        column = sum((index >> qubit & 1) << place for place, qubit in enumerate(qubits))
        rest = index & ~sum(1 << qubit for qubit in qubits)
        for row in range(len(matrix)):
            into = rest | sum((row >> place & 1) << qubit for place, qubit in enumerate(qubits))
            result[into] += matrix[row, column] * amplitude
    return result
