"""Circuits: OpenQASM 3 in and out, and what both simulators must know of one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.quantum.load import load

_ALLOWED = "a qiskit QuantumCircuit, or a string that is a program in OpenQASM 3"


def circuit(given: Any, parameters: Mapping[str, float] | None = None) -> Any:
    """A qiskit QuantumCircuit of what was given, with its free parameters bound; what was given is not changed.

    Raises RuntimeFault where it is no circuit, has no qubits, or has parameters without a finite value.
    """
    qiskit = load("qiskit")
    if isinstance(given, str):
        made = _parsed(given)
    elif isinstance(given, qiskit.QuantumCircuit):
        made = given
    else:
        raise _refused(f"circuit is a {type(given).__name__}: it must be {_ALLOWED}", type(given).__name__)
    if not made.num_qubits:
        raise _refused("circuit has no qubits: it must have at least one", 0, "at least 1 qubit")
    return _bound(made, parameters or {})


def to_qasm(given: Any) -> str:
    """The circuit as a program in OpenQASM 3. Raises RuntimeFault where the language has no word for a part of it."""
    made = _circuit_unbound(given)
    try:
        return str(load("qiskit.qasm3").dumps(made))
    except load("qiskit.qasm3").QASM3Error as error:
        raise _refused(f"circuit cannot be written as OpenQASM 3: {error}", made.name) from error


def _circuit_unbound(given: Any) -> Any:
    """Like `circuit`; parameters may stay free."""
    if isinstance(given, load("qiskit").QuantumCircuit):
        return given
    if isinstance(given, str):
        return _parsed(given)
    raise _refused(f"circuit is a {type(given).__name__}: it must be {_ALLOWED}", type(given).__name__)


def _parsed(text: str) -> Any:
    load("qiskit_qasm3_import")
    try:
        return load("qiskit.qasm3").loads(text)
    except RuntimeFault:
        raise
    except Exception as error:  # the parser's own, its lexer's, and those of the gates that it builds
        words = str(error).strip() or type(error).__name__
        raise _refused(f"circuit is not a program in OpenQASM 3 that can be run: {words}", text.strip()) from error


def _bound(made: Any, parameters: Mapping[str, float]) -> Any:
    names = sorted(each.name for each in made.parameters)
    for name, value in parameters.items():
        if name not in names:
            raise RuntimeFault(
                f"parameters has {name!r}: the circuit has {', '.join(names) or 'none'}",
                field="parameters",
                given=name,
                allowed=names,
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise RuntimeFault(
                f"parameters[{name!r}] is {value!r}: it must be a finite number",
                field="parameters",
                given=value,
                allowed="a finite number",
            )
    missing = [name for name in names if name not in parameters]
    if missing:
        raise RuntimeFault(
            f"parameters has no value for {', '.join(missing)}", field="parameters", given=None, allowed=names
        )
    return made.assign_parameters(dict(parameters)) if names else made


def _refused(message: str, given: Any, allowed: Any = _ALLOWED) -> RuntimeFault:
    return RuntimeFault(message, field="circuit", given=given, allowed=allowed)


@dataclass(frozen=True)
class Parts:
    """A circuit taken apart: `gates` without its final measurements; `measured` maps a classical bit to its qubit."""

    gates: Any
    measured: dict[int, int]
    clbits: int
    #: It measures, resets or decides before its end.
    dynamic: bool


def parts(made: Any) -> Parts:
    """Take a circuit apart. Final are measurements after which nothing but barriers has their qubit or their bit."""
    qubits = {qubit: index for index, qubit in enumerate(made.qubits)}
    clbits = {clbit: index for index, clbit in enumerate(made.clbits)}
    measured: dict[int, int] = {}
    used_qubits: set[int] = set()
    used_clbits: set[int] = set()
    kept, dynamic = [], False
    for each in reversed(made.data):
        operation = each.operation
        on, into = [qubits[bit] for bit in each.qubits], [clbits[bit] for bit in each.clbits]
        if operation.name == "barrier":
            continue
        if operation.name == "measure" and on[0] not in used_qubits and into[0] not in used_clbits:
            measured[into[0]] = on[0]
        else:
            dynamic = dynamic or bool(into) or operation.name == "reset" or hasattr(operation, "blocks")
            kept.append(each)
        used_qubits.update(on)
        used_clbits.update(into)
    gates = made.copy_empty_like()
    gates.data = list(reversed(kept))
    return Parts(gates, measured, made.num_clbits, dynamic)


def lowered(made: Any, names: Collection[str]) -> Any:
    """The circuit in gates of these names only, its global phase kept; itself where it is that already."""
    if all(each.operation.name in names for each in made.data):
        return made
    qiskit = load("qiskit")
    standard = load("qiskit.circuit.library").get_standard_gate_name_mapping()
    try:
        return qiskit.transpile(made, basis_gates=sorted(standard.keys() & set(names)), optimization_level=0)
    except qiskit.exceptions.QiskitError as error:
        raise _refused(f"circuit cannot be written in the simulator's gates: {error}", made.name) from error
