"""Every case in `tests/cases.toml` is tested by name, or says why not."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CASES = tomllib.loads((ROOT / "tests" / "cases.toml").read_text())
_MARK = re.compile(r"mark\.case\(([^)]*)\)")
_SPEC = re.compile(r"\b(?:it|test)\(\s*['\"`]([a-z]+-\d+)\b")


def named() -> dict[str, set[str]]:
    """The files that test each case: Python tests by their mark, the front end's by the beginning of their title."""
    found: dict[str, set[str]] = {}
    for folder, pattern in (("tests", "test_*.py"), ("extensions/lab/tests", "test_*.py")):
        for path in (ROOT / folder).rglob(pattern):
            for names in _MARK.findall(path.read_text()) if path != Path(__file__) else ():
                for name in re.findall(r"[\"']([^\"']+)[\"']", names):
                    found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    for path in (ROOT / "extensions/lab/src").rglob("*.spec.ts*"):
        for name in _SPEC.findall(path.read_text()):
            found.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_case_has_a_test_or_a_reason(name: str) -> None:
    tests, elsewhere = named().get(name, set()), CASES[name].get("elsewhere")
    assert tests or elsewhere, f"{name} has neither a test nor a reason: {CASES[name]['case']}"
    if elsewhere:
        for path in re.findall(r"(?:tests|extensions|docs)/[\w./-]+", elsewhere):
            assert (ROOT / path).exists(), f"{name}: {path}"


def test_no_test_names_a_case_that_is_not_listed() -> None:
    unknown = set(named()) - set(CASES)
    assert not unknown, unknown
