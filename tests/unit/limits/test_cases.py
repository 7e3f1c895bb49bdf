"""The page that says which test shows which case is complete and true."""

from __future__ import annotations

import re

from support.limits import ROOT


def test_every_case_has_tests_that_exist() -> None:
    page = (ROOT / "docs" / "reference" / "limit-cases.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", page, re.M)
    assert [int(number) for number, _ in rows] == list(range(1, 20))
    for number, tests in rows:
        named = re.findall(r"`(tests/[^`]+)` `(test_\w+)`", tests)
        assert named, f"case {number} has no test"
        for file, name in named:
            source = ROOT / file
            assert source.is_file(), f"case {number}: {file}"
            assert re.search(rf"^def {name}\(", source.read_text(), re.M), f"case {number}: {file}::{name}"
