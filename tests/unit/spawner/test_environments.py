"""Environments as a configuration names them."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from gpuspawner.errors import InvalidInput
from gpuspawner.spawner.environments import OWN, choose, read_environments

PYTHON = {"name": "torch", "python": sys.executable}


def test_none_is_the_one_that_the_hub_runs_in() -> None:
    assert read_environments([]) == [OWN]
    assert OWN.command[0] == sys.executable


def test_the_ways_to_name_one() -> None:
    found = read_environments(
        [
            {**PYTHON, "title": "Torch", "description": "With CUDA.", "variables": {"OMP_NUM_THREADS": "2"}},
            {"name": "env", "prefix": sys.prefix},
            {"name": "own", "command": [sys.executable, "-m", "mine"]},
        ]
    )
    assert [each.command[1:] for each in found] == [("-m", "jupyterhub.singleuser")] * 2 + [("-m", "mine")]
    assert found[0].variables == {"OMP_NUM_THREADS": "2"}
    assert found[1].title == "env"
    assert choose(found, None) is found[0]
    assert choose(found, "own") is found[2]
    with pytest.raises(InvalidInput, match=r"environment: 'gone'.*torch, env, own"):
        choose(found, "gone")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "environments"),
        (["torch"], "environments[0]"),
        ([{"name": "torch"}], "environments[0]"),
        ([{**PYTHON, "prefix": sys.prefix}], "environments[0]"),
        ([{**PYTHON, "name": "Torch 2"}], "environments[0].name"),
        ([{**PYTHON, "name": True}], "environments[0].name"),
        ([PYTHON, PYTHON], "environments"),
        ([{"name": "torch", "python": "python"}], "environments[0].python"),
        ([{"name": "torch", "python": "/no/such/python"}], "environments[0].python"),
        ([{"name": "torch", "prefix": 1}], "environments[0].prefix"),
        ([{"name": "torch", "command": "jupyterhub-singleuser"}], "environments[0].command"),
        ([{**PYTHON, "title": "two\nlines"}], "environments[0].title"),
        ([{**PYTHON, "image": "x"}], "environments[0].image"),
        ([{**PYTHON, "variables": {"CUDA_VISIBLE_DEVICES": "0"}}], "environments[0].variables"),
        ([{**PYTHON, "variables": {"LD_PRELOAD": "x"}}], "environments[0].variables"),
        ([{**PYTHON, "variables": {"A": 1}}], "environments[0].variables.A"),
    ],
)
def test_what_is_refused_names_the_field(given: Any, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_environments(given)
    assert refused.value.field == field
