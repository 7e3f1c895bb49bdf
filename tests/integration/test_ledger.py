"""The ledger over SQLite and PostgreSQL: balanced, in a chain, right across crashes and clocks, and exported safely."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from support.memory_fleet import House, MemoryFleet
from support.postgres import Postgres, postgres

from gpuspawner.service import store as store_module
from gpuspawner.service.database import open_database
from gpuspawner.service.ledger.accounts import Accounts
from gpuspawner.service.ledger.report import month_of, report
from gpuspawner.service.ledger.rows import rows
from gpuspawner.service.ledger.sums import summed, totals
from gpuspawner.service.sessions import SessionService

COSTS = """
version: 1
timezone: Europe/Berlin
costs: [{per_hour: "12.345678"}]
prices: [{whole_card: {h100: "3.20"}}]
grid: [{grams_per_kwh: 380, source: a test}]
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Postgres]:
    with postgres() as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'service.sqlite'}"
    made: str = request.getfixturevalue("cluster").database()
    return made


class Clock:
    """The service's clock, in ms."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_790_000_000_000
        for module in ("gpuspawner.service.store", "gpuspawner.service.ledger.keeper"):
            monkeypatch.setattr(f"{module}.now_ms", lambda: self.now)

    def go(self, seconds: float) -> None:
        self.now += round(seconds * 1000)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def seconds(house: House) -> tuple[int, int]:
    """The period of all that is in the ledger."""
    found = list(rows(house.engine))
    return found[0].at_ms // 1000, found[-1].at_ms // 1000 + 1


def test_costs_idle_and_charges(url: str, tmp_path: Path, clock: Clock) -> None:
    house = House(tmp_path, COSTS, url=url, ann=["lab"], bob=["lab"])
    start = clock.now // 1000
    ann = house.start("ann", "1/2").json()["session"]["id"]
    clock.go(1800)
    house.fleet.energy = {"GPU-0000-00": 7_200_000, "GPU-0000-01": 1}
    house.service.keeper._next_reading = 0
    assert house.ask("ann", "PATCH", f"/sessions/{ann}", json={"share": "1/8"}).status_code == 200
    clock.go(1800)
    house.ask("hub", "DELETE", f"/sessions/{ann}")
    end = clock.now // 1000
    told = house.ask("admin", "GET", f"/cost?start={start}&end={end}").json()
    # half at 65 % and an eighth at 25 % of 3.20, half an hour each
    assert [(each["name"], each["charge"], each["eighth_seconds"]) for each in told["sums"]] == [
        ("ann", "1.44", 1800 * 5)
    ]
    assert told["node_cost"] == "12.345678"
    micros = [round(float(each["cost"]) * 1e6) for each in (*told["sums"], told["idle"])]
    assert sum(micros) == 12_345_678
    by_group = house.ask("admin", "GET", f"/cost?start={start}&end={end}&by=group").json()
    assert [each["name"] for each in by_group["sums"]] == ["lab"]
    own = house.ask("ann", "GET", f"/cost?start={start}&end={end}").json()
    assert (own["charge"], own["node_cost"], own["idle"]) == ("1.44", None, None)
    assert house.ask("bob", "GET", f"/cost?start={start}&end={end}").json()["sums"] == []
    assert house.ask("bob", "GET", "/cost?by=group").status_code == 403
    house.engine.dispose()


def test_energy_is_the_part_that_the_share_is(url: str, tmp_path: Path, clock: Clock) -> None:
    fleet = MemoryFleet()
    fleet.energy = {"GPU-0000-00": 1_000, "GPU-0000-01": 0}
    house = House(tmp_path, COSTS, fleet=fleet, url=url)
    ann = house.start("ann", "1/2").json()["session"]
    card = ann["cards"][0]["uuid"]
    for counter in (fleet.energy[card] + 7_200_000, 0):  # then the driver is loaded anew
        fleet.energy[card] = counter
        house.service.keeper._next_reading = 0.0
        house.service.look()
        clock.go(60)
        share = "1" if counter else "1/2"
        house.ask("ann", "PATCH", f"/sessions/{ann['id']}", json={"share": share})
    newest, before, first = house.ask("ann", "GET", f"/events?session={ann['id']}").json()["events"]
    assert (before["energy_mj"], before["co2_ug"]) == (3_600_000, 3_600_000 * 380 // 3600)
    assert before["method"] == "card counter by share; 380 g/kWh, a test"
    assert (newest["energy_mj"], newest["co2_ug"], newest["method"]) == (None, None, None)
    assert first["energy_mj"] is None
    house.engine.dispose()


def test_down_for_an_hour(url: str, tmp_path: Path, clock: Clock) -> None:
    """What ran on is charged; what ended meanwhile until the service last looked, and the rest is the house's."""
    house = House(tmp_path, COSTS, url=url)
    begin = clock.now // 1000
    stays = house.start("ann", "1/2").json()["session"]["id"]
    ends = house.start("bob", "1/4").json()["session"]["id"]
    clock.go(600)
    house.service.keeper._next_beat = 0
    house.service.look()
    clock.go(3600)  # the service is down
    house.fleet.end(ends, "its process is gone")
    SessionService(house.fleet, house.store, book=house.service.book)  # type: ignore[arg-type]
    clock.go(300)
    found = report(house.engine, begin, clock.now // 1000, "session", lambda _user: [])
    used = {each.name: each.eighth_seconds for each in found.sums}
    assert used == {stays: 4 * 4500, ends: 2 * 600}
    assert sum(each.cost_micros or 0 for each in (*found.sums, found.idle)) == found.node_cost_micros  # type: ignore[union-attr]
    assert found.idle is not None
    assert found.idle.eighth_seconds == 16 * 4500 - 4 * 4500 - 2 * 600
    house.engine.dispose()


def test_a_clock_that_is_set_back(url: str, tmp_path: Path, clock: Clock) -> None:
    house = House(tmp_path, COSTS, url=url)
    ann = house.start("ann", "1/2").json()["session"]["id"]
    clock.go(600)
    house.start("bob", "1/4")
    clock.go(-3000)
    house.ask("hub", "DELETE", f"/sessions/{ann}")
    house.start("cy", "1")
    clock.go(3600)
    house.ask("hub", "DELETE", f"/sessions/{house.ask('cy', 'GET', '/sessions').json()['sessions'][0]['id']}")
    times = [row.at_ms for row in rows(house.engine)]
    assert times == sorted(times)
    begin, over = seconds(house)
    found = report(house.engine, begin, over, "user", lambda _user: [])
    assert sum(each.cost_micros or 0 for each in (*found.sums, found.idle)) == found.node_cost_micros  # type: ignore[union-attr]
    assert {each.name: each.eighth_seconds for each in found.sums}["ann"] == 600 * 4
    house.engine.dispose()


def test_months_begin_where_the_house_is_and_daylight_saving_is_no_hour_of_money() -> None:
    from zoneinfo import ZoneInfo

    berlin = ZoneInfo("Europe/Berlin")
    march, october = month_of("2027-03", berlin), month_of("2027-10", berlin)
    assert march[1] - march[0] == 31 * 86400 - 3600
    assert october[1] - october[0] == 31 * 86400 + 3600
    assert month_of("2027-12", berlin)[1] == month_of("2028-01", berlin)[0]


def test_other_prices_are_a_row_at_their_moment(url: str, tmp_path: Path, clock: Clock) -> None:
    house = House(tmp_path, COSTS, url=url)
    ann = house.start("ann", "1").json()["session"]["id"]
    clock.go(100)
    house.write(COSTS.replace("3.20", "6.40"))
    kinds = [
        (row["kind"], row["price_per_hour"])
        for row in house.ask("ann", "GET", f"/events?session={ann}").json()["events"]
    ]
    assert kinds == [("price", "6.40"), ("start", "3.20")]
    house.service.look()
    assert len(house.ask("ann", "GET", f"/events?session={ann}").json()["events"]) == 2
    house.engine.dispose()


def test_corrections_are_new_rows(url: str, tmp_path: Path, clock: Clock) -> None:
    house = House(tmp_path, COSTS, url=url)
    begin = clock.now // 1000
    ann = house.start("ann", "1").json()["session"]["id"]
    clock.go(3600)
    house.ask("hub", "DELETE", f"/sessions/{ann}")
    row = house.ask("ann", "GET", f"/events?session={ann}").json()["events"][-1]["id"]
    body = {"row": row, "amount": "-1.20", "reason": "the card was slow"}
    assert house.ask("ann", "POST", "/ledger/corrections", json=body).status_code == 403
    made = house.ask("admin", "POST", "/ledger/corrections", json=body)
    assert made.status_code == 201
    assert (made.json()["amount"], made.json()["corrects"], made.json()["actor"]) == ("-1.20", row, "admin")
    assert house.ask("admin", "POST", "/ledger/corrections", json={**body, "row": 10**6}).status_code == 404
    clock.go(1)
    told = house.ask("admin", "GET", f"/cost?start={begin}&end={clock.now // 1000}").json()
    assert [(each["name"], each["charge"]) for each in told["sums"]] == [("ann", "2.00")]
    assert house.ask("admin", "GET", "/ledger/verify").json()["ok"]
    house.engine.dispose()


def test_what_counts_to_which_project(url: str, tmp_path: Path, clock: Clock) -> None:
    projects = """
projects:
  - {name: genome, groups: [biology], servers: [genome]}
  - {name: teaching, users: [bob]}
"""
    house = House(tmp_path, COSTS + projects, url=url, ann=["biology"], bob=["biology"])
    begin = clock.now // 1000
    for user, server in (("ann", "genome"), ("ann", ""), ("bob", "genome"), ("bob", "x"), ("cy", "genome")):
        assert house.start(user, "1/4", server=server).status_code == 201
    clock.go(5 * 3600)
    house.write(COSTS)  # what a session counts to is said at its start
    told = house.ask("admin", "GET", f"/cost?start={begin}&end={clock.now // 1000}&by=project").json()
    used = {each["name"]: (each["sessions"], each["eighth_seconds"]) for each in told["sums"]}
    hours = 5 * 3600 * 2
    assert used == {"genome": (2, 2 * hours), "teaching": (1, hours), "(no project)": (2, 2 * hours)}
    assert house.ask("admin", "GET", "/ledger/verify").json()["ok"]
    first = house.ask("admin", "GET", "/events?limit=1000").json()["events"][-3]
    assert (first["user"], first["project"]) == ("ann", "genome")
    house.engine.dispose()


def test_sums_by_the_hour_are_what_the_rows_say(url: str, tmp_path: Path, clock: Clock) -> None:
    house = House(tmp_path, COSTS, url=url)
    begin, ids = clock.now // 1000, []
    for number in range(12):
        ids.append(house.start(f"u{number % 3}", "1/8").json()["session"]["id"])
        clock.go(1700)
        if number % 4 == 3:
            house.ask("hub", "DELETE", f"/sessions/{ids[number - 2]}")
        house.service.keeper._next_sums = 0.0
        house.service.look()
    row = house.ask("admin", "GET", f"/events?session={ids[0]}").json()["events"][-1]["id"]
    body = {"row": row, "amount": "-0.10", "reason": "a test"}
    assert house.ask("admin", "POST", "/ledger/corrections", json=body).status_code == 201
    clock.go(7200)
    house.start("u0", "1/2")
    house.service.keeper._next_sums = 0.0
    house.service.look()
    end = clock.now // 1000 + 1
    with house.engine.connect() as connection:
        hours = connection.scalars(sa.text("SELECT hour FROM usage WHERE span = 1 GROUP BY hour ORDER BY hour")).all()
    assert hours == list(range(begin // 3600, end // 3600)), "each hour that is over"
    for one, two in ((begin, end), (begin + 5, end - 4000), (hours[2] * 3600, hours[5] * 3600), (end - 100, end)):
        rows_say = Accounts(one, two)
        rows_say.add(rows(house.engine))
        say = [sorted(map(repr, found)) for found in (totals(house.engine, one, two), summed(rows_say.close()))]
        assert say[0] == say[1], (one, two)
    house.engine.dispose()


def _unlock(house: House) -> None:
    with house.engine.begin() as connection:
        if house.engine.dialect.name == "sqlite":
            for verb in ("UPDATE", "DELETE"):
                connection.execute(sa.text(f"DROP TRIGGER ledger_no_{verb}"))
        else:
            connection.execute(sa.text("ALTER TABLE ledger DISABLE TRIGGER ledger_append_only"))


@pytest.mark.parametrize(
    ("tampering", "words"),
    [
        ("UPDATE ledger SET price_micros = 1 WHERE id = 4", "Row 4 was changed"),
        ("DELETE FROM ledger WHERE id = 4", "Row 5 does not follow"),
        ("DELETE FROM ledger WHERE id > 4", "known head does not occur"),
    ],
)
def test_the_chain_shows_what_was_changed(url: str, tmp_path: Path, tampering: str, words: str) -> None:
    house = House(tmp_path, COSTS, url=url)
    for user in ("ann", "bob", "cy"):
        house.start(user, "1/8")
    with pytest.raises(sa.exc.DatabaseError), house.engine.begin() as connection:
        connection.execute(sa.text(tampering))
    whole = house.ask("admin", "GET", "/ledger/verify").json()
    assert (whole["ok"], whole["rows"], whole["problem"]) == (True, 5, None)
    _unlock(house)
    with house.engine.begin() as connection:
        connection.execute(sa.text(tampering))
    found = house.ask("admin", "GET", f"/ledger/verify?head={whole['head']}").json()
    assert not found["ok"]
    assert words in found["problem"]
    assert house.ask("ann", "GET", "/ledger/verify").status_code == 403
    house.engine.dispose()


def test_exports_hold_every_row_and_no_formula(url: str, tmp_path: Path) -> None:
    house = House(tmp_path, COSTS, url=url)
    evil = "=cmd|'/c calc'!A1"
    for user in (evil, "+1", "@x", "-2", 'ann, "the"\nfirst'):
        assert house.start(user, "1/8").status_code == 201
    raw = house.ask("admin", "GET", "/ledger/export?format=csv")
    assert raw.headers["content-disposition"] == 'attachment; filename="ledger.csv"'
    table = list(csv.DictReader(io.StringIO(raw.text)))
    cells = [cell for row in table for cell in row.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@", "-"))]
    assert [row["user"] for row in table[2:]] == [f"'{evil}", "'+1", "'@x", "'-2", 'ann, "the"\nfirst']
    lines = [json.loads(line) for line in house.ask("admin", "GET", "/ledger/export?format=json").text.splitlines()]
    assert [line["user"] for line in lines[2:]][:2] == [evil, "+1"]
    import pyarrow.parquet

    data = house.ask("admin", "GET", "/ledger/export?format=parquet").content
    assert pyarrow.parquet.read_table(io.BytesIO(data)).to_pylist() == lines
    assert house.ask("admin", "GET", "/ledger/export?format=xls").status_code == 422
    assert house.ask("ann", "GET", "/ledger/export").status_code == 403
    house.engine.dispose()


def test_the_page_to_print_shows_names_as_text(tmp_path: Path) -> None:
    house = House(tmp_path, COSTS)
    house.start("<script>alert(1)</script>", "1/8")
    until = time.monotonic() + 5
    page = ""
    while "alert" not in page and time.monotonic() < until:
        page = house.ask("admin", "GET", "/cost/page").text
    assert "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td>" in page
    assert "<script" not in page
    house.engine.dispose()


def test_migrations_go_forward_and_back(url: str) -> None:
    engine = open_database(url)
    config = Config()
    config.set_main_option("script_location", "gpuspawner.service:migrations")

    def go(where: str) -> set[str]:
        with engine.begin() as connection:
            config.attributes["connection"] = connection
            (command.upgrade if where == "head" else command.downgrade)(config, where)
        return {column["name"] for column in sa.inspect(engine).get_columns("ledger")}

    assert "hash" in go("head")
    assert "hash" not in go("0001")
    assert "hash" in go("head")
    engine.dispose()


def test_two_writers_make_one_chain(cluster: Postgres, tmp_path: Path) -> None:
    """Two services write to one PostgreSQL at the same time."""
    import threading

    url = cluster.database()
    houses = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        houses.append(House(tmp_path / name, COSTS, url=url, fleet=MemoryFleet(cards=4)))

    def use(house: House, name: str) -> None:
        for number in range(12):
            assert house.start(f"{name}{number}", "1/8").status_code == 201

    threads = [threading.Thread(target=use, args=(house, name)) for house, name in zip(houses, "ab", strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = houses[0].ask("admin", "GET", "/ledger/verify").json()
    assert found["problem"] is None
    assert found["rows"] >= 24
    assert store_module.LIVE
    for house in houses:
        house.engine.dispose()


def test_what_stays_reserved_is_what_was_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session ends between a change of its share and the writing down of it, and its memory stays for a while."""
    house = House(tmp_path, COSTS)
    session = house.start("ann", "1/2").json()["session"]["id"]
    house.fleet.resize(session, 1)
    monkeypatch.setattr(house.fleet, "end", lambda _session, _reason: False)
    assert house.ask("hub", "DELETE", f"/sessions/{session}").status_code == 200
    rows_say = house.ask("admin", "GET", f"/events?session={session}").json()["events"]
    assert [(row["kind"], row["eighths"]) for row in rows_say] == [("end", 0), ("resize", 1), ("start", 4)]
    house.engine.dispose()
