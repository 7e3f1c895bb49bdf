"""The environments that a server can be started in: on one machine, Jupyter installations."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuspawner.spawner.options import invalid

_KEYS = ("name", "title", "description", "python", "prefix", "command", "variables")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\Z", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z", re.ASCII)
#: Variables by which a session is held to its share, or known to the hub.
_KEPT = re.compile(r"CUDA_VISIBLE_DEVICES|LD_.*|GPUSPAWNER_.*|JUPYTERHUB_.*|JPY_.*|HOME|USER|PYTHONPATH")


@dataclass(frozen=True)
class Environment:
    """A Jupyter installation: `command` starts its single-user server (empty on a cluster: its image does). `variables`
    are set in every session of it. `options`: what else can be chosen within it, for the form."""

    name: str
    title: str
    command: tuple[str, ...]
    description: str = ""
    variables: dict[str, str] = field(default_factory=dict)
    options: tuple[Any, ...] = ()

    @property
    def program(self) -> Path:
        """What is started."""
        return Path(self.command[0])


#: The one that gpuspawner itself runs in.
OWN = Environment(
    "default",
    f"Python {sys.version_info.major}.{sys.version_info.minor}",
    (sys.executable, "-m", "jupyterhub.singleuser"),
    "JupyterLab as it came with this hub.",
)


def read_environments(given: Any) -> list[Environment]:
    """The environments of a configuration: dicts with `name`, and `python`, `prefix` (of a conda or virtual
    environment) or `command`; `title`, `description` and `variables` where wanted. An empty list is this one alone.

    Raises InvalidInput, naming the field, what was given and what is allowed.
    """
    if not isinstance(given, list):
        raise invalid("environments", given, "a list of environments")
    found = [_read(entry, f"environments[{at}]") for at, entry in enumerate(given)]
    names = [environment.name for environment in found]
    for name in names:
        if names.count(name) > 1:
            raise invalid("environments", name, "a name for each environment that no other has")
    return found or [OWN]


def choose(environments: Sequence[Environment], name: str | None) -> Environment:
    """The environment of that name; the first for None. Raises InvalidInput."""
    if name is None:
        return environments[0]
    for environment in environments:
        if environment.name == name:
            return environment
    raise invalid("environment", name, ", ".join(environment.name for environment in environments))


def _read(entry: Any, where: str) -> Environment:
    if not isinstance(entry, dict):
        raise invalid(where, entry, "an object with a name and a python, prefix or command")
    for key in entry:
        if key not in _KEYS:
            raise invalid(f"{where}.{key}", entry[key], "the keys " + ", ".join(_KEYS), what="unknown key")
    name = entry.get("name")
    if type(name) is not str or not _NAME.match(name):
        raise invalid(f"{where}.name", name, "lower-case letters, digits and dashes, at most 40")
    title = _words(entry, "title", where, 80) or name
    description = _words(entry, "description", where, 300)
    return Environment(name, title, _command(entry, where), description, _variables(entry, where))


def _words(entry: dict[str, Any], key: str, where: str, longest: int) -> str:
    text = entry.get(key, "")
    if type(text) is not str or len(text) > longest or not all(c.isprintable() for c in text):
        raise invalid(f"{where}.{key}", text, f"one line of at most {longest} characters")
    return text


def _command(entry: dict[str, Any], where: str) -> tuple[str, ...]:
    ways = [key for key in ("python", "prefix", "command") if key in entry]
    if len(ways) != 1:
        raise invalid(where, ways, "exactly one of python, prefix and command")
    (way,) = ways
    value = entry[way]
    if way == "command":
        if not isinstance(value, list) or not value or not all(type(word) is str and word for word in value):
            raise invalid(f"{where}.command", value, "a list of words, the program's absolute path first")
        command = tuple(value)
    elif type(value) is not str:
        raise invalid(f"{where}.{way}", value, "an absolute path")
    else:
        python = value if way == "python" else f"{value}/bin/python"
        command = (python, "-m", "jupyterhub.singleuser")
    if not Path(command[0]).is_absolute() or not os.access(command[0], os.X_OK):
        raise invalid(f"{where}.{way}", value, "the absolute path of something that exists and can be run")
    return command


def _variables(entry: dict[str, Any], where: str) -> dict[str, str]:
    given = entry.get("variables", {})
    if not isinstance(given, dict):
        raise invalid(f"{where}.variables", given, "an object of text")
    for name, value in given.items():
        if type(name) is not str or not _VARIABLE.match(name) or _KEPT.fullmatch(name):
            raise invalid(f"{where}.variables", name, "names of variables that gpuspawner does not set itself")
        if type(value) is not str or "\0" in value or len(value) > 4096:
            raise invalid(f"{where}.variables.{name}", value, "text of at most 4096 characters")
    return dict(given)
