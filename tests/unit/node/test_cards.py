"""Which cards a machine serves, by its settings and by what NVML finds."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from gpuspawner.errors import InvalidInput, Unavailable
from gpuspawner.node.cards import choose, count_nvidia_cards
from gpuspawner.simulation import SimulatedCards


def test_simulated_cards_are_those_asked_for() -> None:
    assert choose({"GPUSPAWNER_CARDS": "simulated"}).simulated_spec == "2*h100-80gb"
    asked = {"GPUSPAWNER_CARDS": "simulated", "GPUSPAWNER_SIMULATED": "1*v100-32gb"}
    assert choose(asked).simulated_spec == "1*v100-32gb"


@pytest.mark.parametrize("given", ["intel", "Nvidia", "simulated,nvidia"])
def test_another_word_is_refused_by_name(given: str) -> None:
    with pytest.raises(InvalidInput, match=r"GPUSPAWNER_CARDS.*auto, nvidia, amd, simulated"):
        choose({"GPUSPAWNER_CARDS": given})


@pytest.mark.parametrize("given", ["h100", "2xh100-80gb", "0*h100-80gb", "17*h100-80gb", ",", "2*h100-80gb,1*h900"])
def test_cards_that_nobody_plays_are_refused_before_anything_starts(given: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        choose({"GPUSPAWNER_CARDS": "simulated", "GPUSPAWNER_SIMULATED": given})
    assert refused.value.field == "GPUSPAWNER_SIMULATED"
    assert given in refused.value.message
    assert re.search(r"Allowed: (N\*MODEL|1 to 16)", refused.value.message), refused.value.message


def test_nvidia_cards_where_there_are_none_are_refused_with_what_was_found() -> None:
    count, found = count_nvidia_cards()
    if count:
        pytest.skip("this machine has NVIDIA cards")
    with pytest.raises(Unavailable) as refused:
        choose({"GPUSPAWNER_CARDS": "nvidia"})
    assert refused.value.field == "GPUSPAWNER_CARDS"
    assert found in refused.value.message
    assert "auto" in refused.value.message
    assert choose({}).kind == "simulated"


def test_cards_that_nvml_finds_are_counted() -> None:
    with SimulatedCards("3*a100-40gb") as cards:
        for wanted, says in (("nvidia", "kind='nvidia'"), ("auto", "NVML found 3 cards")):
            program = f"from gpuspawner.node.cards import choose; print(choose({{'GPUSPAWNER_CARDS': {wanted!r}}}))"
            argv = [sys.executable, "-c", program]
            done = subprocess.run(argv, env=os.environ | cards.env(), capture_output=True, text=True, check=False)
            assert says in done.stdout, done.stderr
