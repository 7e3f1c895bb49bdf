"""After how much idleness something happens: from the environment, never without a warning."""

import pytest

from gpuspawner.errors import InvalidInput
from gpuspawner.idle import IdleTimes


def times(**given: str) -> IdleTimes:
    return IdleTimes.from_env({f"GPUSPAWNER_IDLE_{name.upper()}_SECONDS": text for name, text in given.items()})


def test_nothing_happens_unless_somebody_asks_for_it() -> None:
    assert not times().on
    assert not times(warn="0", shrink="0", cull="0").on


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cull": "7200"}, (2700, 5400, 7200)),
        ({"cull": "7200", "shrink": "0"}, (3600, None, 7200)),
        ({"shrink": "600"}, (300, 600, None)),
        ({"warn": "60", "shrink": "600", "cull": "600"}, (60, 600, 600)),
        ({"warn": "60"}, (60, None, None)),
    ],
)
def test_a_warning_always_comes_first(given: dict[str, str], expected: tuple[float | None, ...]) -> None:
    found = times(**given)
    assert (found.warn, found.shrink, found.cull) == expected
    assert found.on


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"cull": "soon"}, "CULL"),
        ({"cull": "nan"}, "CULL"),
        ({"cull": "-1"}, "CULL"),
        ({"cull": "1e-300"}, "CULL"),
        ({"warn": "0.5"}, "WARN"),
        ({"cull": "٦٠"}, "CULL"),
        ({"shrink": "1e99"}, "SHRINK"),
        ({"warn": "600", "cull": "600"}, "WARN"),
        ({"shrink": "700", "cull": "600"}, "SHRINK"),
        ({"check": "0"}, "CHECK"),
        ({"check": "inf"}, "CHECK"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^GPUSPAWNER_IDLE_{field}_SECONDS: .* Allowed: "):
        times(**given)
