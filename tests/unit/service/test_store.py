"""The ledger, whatever the clock and other writers do."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpuspawner.card import Card
from gpuspawner.errors import Unavailable
from gpuspawner.fleet.base import Grant
from gpuspawner.service import store as module
from gpuspawner.service.database import open_database
from gpuspawner.service.store import Store
from gpuspawner.service.tariff import Tariff
from gpuspawner.share import GPUShare

CARD = Card(uuid="GPU-00000000-0000-0000-0000-000000000001", index=0, name="NVIDIA H100 80GB HBM3", memory_bytes=2**36)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(open_database(f"sqlite:///{tmp_path}/service.sqlite"), Tariff())
    made.started(Grant("s-1", (CARD,), 2), "ann", "", GPUShare(2), "hub")
    return made


def test_no_session_ends_before_it_began(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    began = store.ledger("s-1")[0].at_ms
    monkeypatch.setattr(module, "now_ms", lambda: began - 3_600_000)
    store.resized("s-1", GPUShare(4), "ann", "")
    store.ended("s-1", True, "hub", "stopped")
    assert [row.at_ms for row in store.ledger("s-1")] == [began] * 4
    row = store.session("s-1")
    assert row is not None
    assert row.ended_ms == began


def test_who_ends_a_session_at_once_writes_one_end(store: Store) -> None:
    everybody = threading.Barrier(8)

    def end(freed: bool) -> None:
        everybody.wait()
        store.ended("s-1", freed, "hub", "stopped")

    threads = [threading.Thread(target=end, args=(number % 2 == 0,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row.kind for row in store.ledger("s-1")] == ["free", "end", "start"]


def test_nothing_follows_an_end(store: Store) -> None:
    store.ended("s-1", False, "hub", "stopped")
    assert not store.resized("s-1", GPUShare(8), "ann", "too late")
    assert [row.kind for row in store.ledger("s-1")] == ["end", "start"]


def test_a_database_that_cannot_be_used_is_named_without_its_password(tmp_path: Path) -> None:
    (tmp_path / "bad.sqlite").write_bytes(b"garbage" * 1000)
    with pytest.raises(Unavailable, match=r"bad\.sqlite"):
        open_database(f"sqlite:///{tmp_path}/bad.sqlite")
    with pytest.raises(Unavailable) as caught:
        open_database("nonsense secret-word")
    assert "secret-word" not in caught.value.message
