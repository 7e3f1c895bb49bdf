"""Imports point inward to the vocabulary: a room may import only what stands here."""

import ast
from pathlib import Path

import pytest

import gpuspawner

PACKAGE = Path(gpuspawner.__file__).parent
VOCABULARY = {
    "share",
    "card",
    "errors",
    "state",
    "processes",
    "idle",
    "kubernetes_names",
    "capacity",
    "protocol",
    "tls",
}
MAY_IMPORT = {
    "share": {"errors"},
    "card": set(),
    "errors": set(),
    "state": {"errors"},
    "idle": {"errors"},
    "capacity": {"errors", "share"},
    "protocol": {"errors", "capacity"},
    "processes": set(),
    "tls": set(),
    "kubernetes_names": set(),
    "kubernetes_api": {"errors"},
    "simulation": {"errors", "card"},
    "queue": {"errors", "share"},
    "node": VOCABULARY | {"simulation", "kubernetes_api"},
    "fleet": VOCABULARY | {"node", "kubernetes_api"},
    "service": VOCABULARY | {"fleet", "queue", "kubernetes_api"},
    "spawner": VOCABULARY,
    "supervisor": VOCABULARY | {"node", "simulation"},
    "client": {"errors", "state", "tls"},
    "commands": VOCABULARY | {"client", "service"},
    "cli": VOCABULARY | {"supervisor", "commands", "queue"},
}


def rooms_imported(file: Path) -> set[str]:
    """The rooms of gpuspawner that a file imports, at whatever depth of its code."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                assert node.level == 1, f"{file}: an import from a folder above hides which room is meant"
                continue
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found.update(name.split(".")[1] for name in names if name.startswith("gpuspawner.") and "." in name)
    return found & MAY_IMPORT.keys()


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(room: str) -> None:
    place = PACKAGE / room
    files = sorted(place.rglob("*.py")) if place.is_dir() else [PACKAGE / f"{room}.py"]
    assert files
    for file in files:
        strangers = rooms_imported(file) - MAY_IMPORT[room] - {room}
        assert not strangers, f"{file.relative_to(PACKAGE)} imports {sorted(strangers)}"


def test_every_room_is_listed() -> None:
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert rooms - {"__init__", "__main__"} == set(MAY_IMPORT)


def test_the_notebook_side_imports_nothing_of_the_hub() -> None:
    for place in ("extensions/lab/gpuspawner_lab", "images/runtime", "images/examples"):
        for file in (PACKAGE.parent / place).rglob("*.py"):
            assert not rooms_imported(file), f"{file} imports {rooms_imported(file)}"
