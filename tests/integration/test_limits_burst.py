"""Sessions that compute with what others leave idle: the service and its agent on simulated cards in timed mode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.busy import Busy
from support.limits import wait_until
from support.machine import machine

pytestmark = pytest.mark.alone


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[Busy]:
    with machine(tmp_path / "state", "1*h100-80gb", timed=True) as made:
        yield Busy(tmp_path, made)


def test_what_is_idle_is_lent_and_comes_back(busy: Busy) -> None:
    borrower = busy.start("ann", "1/4", burst=True)
    assert borrower["burst"] is True
    wait_until(lambda: busy.shares()[borrower["id"]] > 80, "the whole card for the only one that wants it")
    owner = busy.start("ben", "1/2")
    assert owner["burst"] is False
    wait_until(lambda: 40 < busy.shares()[owner["id"]] < 60, "the owner's half for the owner")
    wait_until(lambda: 35 < busy.shares()[borrower["id"]] < 60, "its quarter, and the one that nobody holds")

    assert busy.patch(borrower, burst=False)["burst"] is False
    wait_until(lambda: busy.shares()[borrower["id"]] < 32, "its quarter, and no more")
    both = busy.patch(borrower, share="1/8", burst=True)
    assert [both["share"], both["burst"]] == ["1/8", True]
    busy.machine.api.delete(f"/sessions/{owner['id']}")
    wait_until(lambda: busy.shares()[borrower["id"]] > 80, "the whole card again")

    busy.machine.kill_service()  # and what was lent stays so until somebody looks
    busy.machine.start_service()
    assert busy.machine.api.get(f"/sessions/{borrower['id']}").json()["burst"] is True
    wait_until(lambda: busy.shares()[borrower["id"]] > 80, "the whole card after a new start of the service")


def test_what_burst_may_be(tmp_path: Path) -> None:
    with machine(tmp_path / "state", "1*h100-80gb", env={"GPUSPAWNER_BURST": "yes"}) as made:
        session, _ = made.start("ann", "1/4")
        assert session["burst"] is True  # as the operator has set it
        assert made.start("ben", "1/4", burst=False)[0]["burst"] is False
        for body in ({"burst": "yes"}, {"burst": 1}, {}, {"burst": None}, {"share": None}):
            answer = made.api.patch(f"/sessions/{session['id']}", json=body)
            assert answer.status_code == 422, body
            assert answer.json()["error"]["field"] in ("burst", "share")
        answer = made.api.patch(f"/sessions/{session['id']}", json={"share": "1", "burst": False})
        assert answer.status_code == 409  # does not fit, and so nothing is changed
        assert made.api.get(f"/sessions/{session['id']}").json()["burst"] is True
