"""Two services on one PostgreSQL: one decides, the other serves reads, and takes over when the first is gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.common import until
from support.memory_fleet import House, MemoryFleet
from support.postgres import Postgres, postgres

from gpuspawner.service.leader import PostgresLeadership


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    with postgres() as made:
        yield made


def test_one_leads_and_the_other_takes_over(cluster: Postgres, tmp_path: Path) -> None:
    url, fleet = cluster.database(), MemoryFleet()
    houses = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        houses.append(House(tmp_path / name, fleet=fleet, url=url, leadership=PostgresLeadership))
    one, two = houses
    session = one.start("ann", "1/4").json()["session"]["id"]
    two.service.look()
    assert two.ask("ann", "GET", f"/sessions/{session}").json()["share"] == "1/4"
    for refused in (
        two.start("bob", "1/4"),
        two.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1/2"}),
        two.ask("hub", "DELETE", f"/sessions/{session}"),
    ):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_leader")
    assert one.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1/2"}).status_code == 200
    one.service.leadership.close()  # type: ignore[attr-defined]
    until(lambda: two.service.look() or two.service.leadership.leads, 60, "the other one to lead")  # type: ignore[func-returns-value]
    assert two.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1/8"}).status_code == 200
    one.service.look()
    assert one.start("cy", "1/4").status_code == 503
    assert two.ask("admin", "GET", "/ledger/verify").json()["ok"]


def test_who_waits_waits_at_the_one_that_takes_over(cluster: Postgres, tmp_path: Path) -> None:
    url, fleet = cluster.database(), MemoryFleet(cards=1)
    houses = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        houses.append(House(tmp_path / name, fleet=fleet, url=url, leadership=PostgresLeadership))
    one, two = houses
    ann = one.start("ann", "1").json()["session"]["id"]
    waits = [one.start(user, "1", wait=True).json()["waiting"]["id"] for user in ("bob", "cy")]
    assert [each["id"] for each in two.ask("hub", "GET", "/queue").json()["queue"]] == waits
    for refused in (two.ask("hub", "GET", f"/queue/{waits[0]}"), two.ask("hub", "DELETE", f"/sessions/{waits[0]}")):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_leader")
    one.service.leadership.close()  # type: ignore[attr-defined]
    until(lambda: two.service.look() or two.service.leadership.leads, 60, "the other one to lead")  # type: ignore[func-returns-value]
    places = [two.ask("hub", "GET", f"/queue/{session}").json()["state"] for session in waits]
    assert places == ["waiting", "waiting"]
    two.ask("hub", "DELETE", f"/sessions/{ann}")
    two.service.look()
    states = [two.ask("hub", "GET", f"/queue/{session}").json()["state"] for session in waits]
    assert states == ["placed", "waiting"]
    assert set(fleet.held) == {waits[0]}


def test_a_database_that_was_away(tmp_path: Path) -> None:
    with postgres() as own:
        house = House(tmp_path, url=own.database(), leadership=PostgresLeadership)
        session = house.start("ann", "1/4").json()["session"]["id"]
        own.stop()
        away = house.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1/2"})
        assert away.status_code == 503
        assert house.fleet.held[session].eighths_per_card == 2, "the session is unharmed"
        house.service.leadership.refresh()
        own.start()
        house.service.look()
        assert house.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1/2"}).status_code == 200
        assert house.ask("admin", "GET", "/ledger/verify").json()["ok"]
        house.engine.dispose()
