"""Changes of a running session: all or nothing, whatever of it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuspawner.card import Card
from gpuspawner.errors import GPUSpawnerError, NoRoom, Unavailable
from gpuspawner.fleet.base import CardState, Grant
from gpuspawner.service.database import open_database
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.store import Store
from gpuspawner.service.tariff import Tariff
from gpuspawner.share import GPUShare

CARD = Card(uuid="GPU-00000000-0000-0000-0000-000000000001", index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=2**36)


class OneSession:
    """A fleet with one session `s` of a quarter; what is named in `failing` fails."""

    def __init__(self) -> None:
        self.eighths, self.burst = 2, False
        self.failing: dict[str, GPUSpawnerError] = {}

    def grant(self, session: str) -> Grant | None:
        return Grant("s", (CARD,), self.eighths, burst=self.burst) if session == "s" else None

    def grants(self) -> list[Grant]:
        return [Grant("s", (CARD,), self.eighths, burst=self.burst)]

    def cards(self, uuids: object = None) -> list[CardState]:
        return [CardState(CARD, 8 - self.eighths)]

    def energy_mj(self) -> dict[str, int]:
        return {}

    def alive(self, session: str) -> bool:
        return True

    def busy(self) -> dict[str, bool | None]:
        return {}

    def resize(self, session: str, eighths: int) -> None:
        if "resize" in self.failing:
            raise self.failing["resize"]
        self.eighths = eighths

    def set_burst(self, session: str, burst: bool) -> None:
        if "burst" in self.failing:
            raise self.failing["burst"]
        self.burst = burst


@pytest.mark.parametrize("burst_before", [False, True])
@pytest.mark.parametrize(
    "failing", ["nothing", "share refused", "burst refused", "share not written", "burst not written"]
)
def test_share_and_burst_change_together_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str, burst_before: bool
) -> None:
    fleet = OneSession()
    fleet.burst = burst_before
    store = Store(open_database(f"sqlite:///{tmp_path}/service.sqlite"), Tariff())
    store.started(fleet.grants()[0], "ann", "", GPUShare(2), "hub")
    sessions = SessionService(fleet, store)  # type: ignore[arg-type]
    what, _, how = failing.partition(" ")
    error = NoRoom("It does not fit.") if what == "share" else Unavailable("The limit cannot be set.")
    if how == "refused":
        fleet.failing["resize" if what == "share" else "burst"] = error
    elif how:
        written = {"share": "resized", "burst": "set_burst"}[what]
        real, left = getattr(store, written), [error]

        def fail_once(*words: object) -> object:
            if left:
                raise left.pop()
            return real(*words)

        monkeypatch.setattr(store, written, fail_once)
    if failing == "nothing":
        sessions.change("s", GPUShare(4), not burst_before, "ann")
    else:
        with pytest.raises(type(error)):
            sessions.change("s", GPUShare(4), not burst_before, "ann")
    row = store.session("s")
    assert row is not None
    done = failing == "nothing"
    assert (fleet.eighths, fleet.burst) == ((4, not burst_before) if done else (2, burst_before))
    assert row.share == ("1/2" if done else "1/4")
    assert row.burst == fleet.burst
