"""The policy file: what it refuses, what it means, and that every way into the service asks it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.memory_fleet import House, MemoryFleet

from gpuspawner.service.policy.decide import Policy
from gpuspawner.service.policy.schema import Allow, Rule
from gpuspawner.service.policy.source import PolicyError, PolicySource, parse
from gpuspawner.share import GPUShare

LAB = """
version: 1
cards:
  - uuid: GPU-0000-01
    labels: {dataset: test}
rules:
  - name: staff
    groups: [staff]
    allow: {}
  - name: interns
    groups: [interns]
    allow:
      shares: [1/8, 1/4]
      cards: [dataset=test]
      environments: [default]
      sessions: 1
    rights: [telemetry, use]
  - name: supervisors watch
    groups: [supervisors]
    rights: [telemetry]
    over: {groups: [interns]}
"""


@pytest.fixture
def lab(tmp_path: Path) -> House:
    return House(tmp_path, LAB, ann=["staff"], ida=["interns"], sue=["supervisors"])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("version: 2", "version"),
        ("version: 1\nrule: []", "rule"),
        ("version: 1\nrules: [{name: a, allow: {shares: [1/3]}}]", "rules.0.allow.shares.0"),
        ("version: 1\nrules: [{name: a, allow: {cards: ['dataset=']}}]", "rules.0.allow.cards.0"),
        ("version: 1\nrules: [{name: a, until: 2027-01-31T10:00}]", "rules.0.until"),
        ("version: 1\nrules: [{name: a, rights: [kill]}]", "rules.0.rights.0"),
        ("version: 1\nrules: [{name: a}, {name: a}]", "the file"),
        ("version: 1\nrules: [{name: a, rights: [use], over: {users: [bob]}}]", "rules.0"),
        ("version: 1\nprices: [{whole_card: {h100: 3.2}}]", "prices.0.whole_card.h100"),
        ("version: 1\nprices: [{percent: {'1': 50}}]", "prices.0"),
        ("version: 1\ntimezone: Mars/Base", "timezone"),
        ("version: 1\nbudgets: [{name: a, users: [x]}]", "budgets.0"),
        ("version: 1\nversion: 1", ""),
        ("version: &a 1\ncurrency: *a", ""),
        ("- 1", "version"),
        ("version: [", ""),
        ("[" * 5000, ""),
        ("#" * 1_100_000, ""),
    ],
)
def test_a_bad_file_is_refused_by_place(text: str, place: str) -> None:
    with pytest.raises(PolicyError) as refused:
        parse(text)
    assert (refused.value.field or "") == place
    assert refused.value.message


def test_without_a_file_everybody_may_everything(tmp_path: Path) -> None:
    house = House(tmp_path)
    started = house.start("ann", "1/2")
    assert started.status_code == 201
    session = started.json()["session"]["id"]
    assert house.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1"}).status_code == 200
    offers = house.ask("ann", "GET", "/offers").json()
    assert all(offer["allowed"] for offer in offers["offers"])
    assert (offers["environments"], offers["no_card_reason"]) == (None, None)


def test_an_intern_gets_the_test_cards_only(lab: House) -> None:
    for _ in range(2):  # also where the other card would be chosen, being fuller
        session = lab.start("ida", "1/8", environment="default").json()["session"]
        assert session["cards"][0]["uuid"] == "GPU-0000-01"
        lab.ask("hub", "DELETE", f"/sessions/{session['id']}")
        lab.start("ann", "1/2", server="first", card="GPU-0000-00")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"share": "1/2", "environment": "default"}, "1/8, 1/4, not 1/2"),
        ({"share": "1/8", "environment": "pytorch"}, "environments default, not pytorch"),
        ({"share": "1/8"}, "environments default"),
        ({"share": "1/8", "environment": "default", "card": "GPU-0000-00"}, "only cards with dataset=test"),
        ({"share": "none", "environment": "pytorch"}, "environments default"),
        ({"share": "2", "environment": "default"}, "not 2"),
    ],
)
def test_what_an_intern_may_not_is_refused_with_the_reason(lab: House, asked: dict[str, str], words: str) -> None:
    refused = lab.start("ida", **asked)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "policy"
    assert words in refused.json()["error"]["message"]
    assert lab.fleet.held == {}


def test_only_so_many_at_once(lab: House) -> None:
    assert lab.start("ida", "1/8", environment="default").status_code == 201
    refused = lab.start("ida", "1/8", environment="default", server="second")
    assert refused.status_code == 403
    assert "1 session at once" in refused.json()["error"]["message"]
    assert lab.start("ida", "1/8", environment="default").status_code in (200, 201), "the same server again"


def test_somebody_without_a_rule_may_nothing(lab: House) -> None:
    assert lab.start("eve", "1/8").status_code == 403
    assert lab.start("eve", "none").status_code == 403
    offers = lab.ask("hub", "GET", "/offers", params={"user": "eve"}).json()
    assert not any(offer["available"] for offer in offers["offers"])
    assert all("no rule" in offer["reason"] for offer in offers["offers"])
    assert "no rule" in offers["no_card_reason"]


def test_the_form_is_told_what_is_not_allowed_and_why(lab: House) -> None:
    offers = lab.ask("hub", "GET", "/offers", params={"user": "ida"}).json()
    by_share = {offer["share"]: offer for offer in offers["offers"]}
    assert (by_share["1/4"]["available"], by_share["1/4"]["free_places"]) == (True, 4), "of one card, not of two"
    assert (by_share["1"]["available"], by_share["1"]["allowed"]) == (False, False)
    assert by_share["1"]["reason"] == "The policy allows 1/8, 1/4, not 1."
    assert offers["environments"] == ["default"]
    assert lab.ask("ida", "GET", "/offers", params={"user": "ann"}).status_code == 403


def test_growth_is_asked_too_whoever_asks(lab: House) -> None:
    session = lab.start("ida", "1/8", environment="default").json()["session"]["id"]
    at = f"/sessions/{session}"
    refused = lab.ask("ida", "PATCH", at, json={"share": "1/4"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "policy"), "no right to resize"
    assert lab.ask("server:ida/", "PATCH", at, json={"share": "1/4"}).status_code == 403
    assert lab.ask("admin", "PATCH", at, json={"share": "1/4"}).status_code == 200
    refused = lab.ask("admin", "PATCH", at, json={"share": "1/2"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "policy"), "not the intern's size"
    assert lab.fleet.held[session].eighths_per_card == 2
    options = {option["share"]: option for option in lab.ask("ida", "GET", at).json()["options"]}
    assert options["1/8"]["available"]
    assert options["1/2"]["reason"] == "The policy allows 1/8, 1/4, not 1/2."


def test_less_is_never_against_the_policy(lab: House) -> None:
    session = lab.start("ann", "1/2").json()["session"]["id"]
    lab.people.groups["ann"] = []
    lab.write(LAB.replace("groups: [staff]\n    allow: {}", "users: [ann]\n    allow: {shares: [1]}"))
    assert lab.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1/8"}).status_code == 200
    assert lab.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1/4"}).status_code == 403
    assert lab.ask("ann", "PATCH", f"/sessions/{session}", json={"share": "1"}).status_code == 200


def test_a_supervisor_may_watch_and_not_touch(lab: House) -> None:
    ida = lab.start("ida", "1/8", environment="default").json()["session"]["id"]
    ann = lab.start("ann", "1/8").json()["session"]["id"]
    assert lab.ask("sue", "GET", f"/sessions/{ida}").status_code == 200
    assert [row["id"] for row in lab.ask("sue", "GET", "/sessions").json()["sessions"]] == [ida]
    assert lab.ask("sue", "PATCH", f"/sessions/{ida}", json={"share": "1/4"}).status_code == 403
    assert lab.ask("sue", "GET", f"/sessions/{ann}").status_code == 404
    assert lab.ask("server:sue/", "GET", f"/sessions/{ida}").status_code == 404, "what runs in a server is not sue"
    assert lab.ask("ann", "GET", f"/sessions/{ida}").status_code == 404


def test_rules_hold_from_and_until(tmp_path: Path) -> None:
    house = House(
        tmp_path,
        "version: 1\nrules:\n"
        "- {name: past, users: [ann], until: 2020-01-01, allow: {}}\n"
        "- {name: later, users: [bob], from: 2999-01-01, allow: {}}\n"
        "- {name: now, users: [cy], from: 2020-01-01, until: '2999-01-01T00:00:00+02:00', allow: {}}\n",
    )
    assert [house.start(user, "1/8").status_code for user in ("ann", "bob", "cy")] == [403, 403, 201]


def test_roles_count_as_groups_do(tmp_path: Path) -> None:
    house = House(tmp_path, "version: 1\nrules: [{name: r, roles: [gpu-user], allow: {}}]")
    house.people.roles["ann"] = ["gpu-user"]
    assert [house.start(user, "1/8").status_code for user in ("ann", "bob")] == [201, 403]


def test_nodes_and_models(tmp_path: Path) -> None:
    rules = (
        "version: 1\nrules:\n"
        "- {name: n, users: [ann], allow: {nodes: [n1], models: [h100]}}\n"
        "- {name: m, users: [bob], allow: {models: [a100]}}\n"
    )
    house = House(tmp_path, rules, fleet=MemoryFleet(nodes=3, cards=1))
    assert house.start("ann", "1/8").json()["session"]["cards"][0]["uuid"] == "GPU-0001-00"
    refused = house.start("bob", "1/8")
    assert refused.status_code == 403
    assert "cards of a100, not h100-80gb" in refused.json()["error"]["message"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_all_cards_at_once_are_decided_as_one_by_one(data: st.DataObject) -> None:
    def some(values: list[str]) -> list[str] | None:
        return data.draw(st.none() | st.lists(st.sampled_from(values), max_size=2))

    states = list(MemoryFleet(nodes=3, cards=2).states.values())
    labels = {"GPU-0001-01": frozenset({"dataset=test"}), "GPU-0002-00": frozenset({"dataset=test", "rack=2"})}
    rules = []
    for number in range(data.draw(st.integers(0, 3))):
        cards = some(["dataset=test", "rack=2", "GPU-0000-00"])
        allow = Allow(
            models=some(["h100", "a100", "h100-80gb"]), nodes=some(["n0", "n2"]), cards=cards, shares=some(["1/8", "1"])
        )
        rules.append(Rule(name=str(number), allow=allow))
    policy, share = Policy(tuple(rules), labels), GPUShare.parse(data.draw(st.sampled_from(["1/8", "1/2", "1"])))
    assert policy.offered(rules, share, states, "default") == [
        state for state in states if policy.why_not(rules, share, [state], "default") is None
    ]


def test_a_changed_file_counts_without_a_restart_and_a_broken_one_does_not(lab: House) -> None:
    assert lab.start("eve", "1/8").status_code == 403
    lab.write("version: 1\nrules: [{name: all, allow: {shares: [1/8]}}]")
    assert lab.start("eve", "1/8").status_code == 201
    lab.write("version: 1\nrules: [{name: all, alow: {}}]")
    assert lab.start("fay", "1/4").status_code == 403, "the old one is in force"
    told = lab.ask("admin", "GET", "/policy").json()
    assert told["problem"].startswith("rules.0.alow:")
    assert told["rules"] == ["all"]
    assert lab.ask("admin", "GET", "/offers").json()["policy_problem"] == told["problem"]
    assert lab.ask("eve", "GET", "/offers").json()["policy_problem"] is None
    assert lab.ask("eve", "GET", "/policy").status_code == 403
    lab.path.unlink()
    lab.service.look()
    assert lab.start("fay", "1/4").status_code == 403, "a file that is gone opens nothing"
    assert "gone" in lab.ask("admin", "GET", "/policy").json()["problem"]
    lab.write(LAB)
    assert lab.ask("admin", "GET", "/policy").json()["problem"] is None


def test_a_start_with_a_broken_file_takes_the_last_good_one(tmp_path: Path) -> None:
    path, kept = tmp_path / "policy.yaml", tmp_path / "kept.yaml"
    path.write_text("version: x")
    with pytest.raises(PolicyError):
        PolicySource(path, kept)
    path.write_text(LAB)
    good = PolicySource(path, kept).current.digest
    path.write_text("version: x")
    source = PolicySource(path, kept)
    assert source.current.digest == good
    assert source.problem is not None
    path.unlink()
    gone = PolicySource(path, kept)
    assert (gone.current.digest, "gone" in (gone.problem or "")) == (good, True)
    with pytest.raises(PolicyError, match="GPUSPAWNER_POLICY"):
        PolicySource(path, required=True)


def test_explain_says_what_is_allowed_and_why_not(lab: House) -> None:
    told = lab.ask("ida", "GET", "/policy/users/ida").json()
    assert (told["groups"], told["sessions"], told["rights"]) == (["interns"], 1, ["telemetry", "use"])
    assert [rule["name"] for rule in told["rules"]] == ["interns"]
    starts = {(start["model"], start["share"]): start for start in told["starts"]}
    assert starts["h100-80gb", "1/4"]["allowed"]
    assert starts["h100-80gb", "1/2"]["reason"] == "The policy allows 1/8, 1/4, not 1/2."
    assert lab.ask("ida", "GET", "/policy/users/ann").status_code == 403
    assert lab.ask("admin", "GET", "/policy/users/nobody").json()["rules"] == []


def test_prices_change_at_their_moment() -> None:
    prices = parse(
        "version: 1\ncurrency: CHF\nprices:\n"
        "- {whole_card: {h100: '3.20', a100-40gb: '1.50', a100: 2}}\n"
        "- {from: 2027-01-01, whole_card: {h100: '4'}, other: '1', percent: {1/8: 20}}\n"
    )
    from gpuspawner.service.tariff import PriceList
    from gpuspawner.share import GPUShare

    listed = PriceList.of(prices)
    before, after = datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    one, eighth = GPUShare(8), GPUShare(1)
    assert [listed.at(at).price(one, "h100-80gb") for at in (before, after)] == ["3.20", "4.00"]
    assert [listed.at(at).price(eighth, "h100-80gb") for at in (before, after)] == ["0.80", "0.80"]
    assert [listed.at(before).price(one, model) for model in ("a100-40gb", "a100-80gb", "v100-16gb")] == [
        "1.50",
        "2.00",
        "2.00",
    ]
    assert listed.at(after).price(one, "a100-80gb") == "1.00"
    assert listed.currency == "CHF"
    assert listed.changes() == [int(after.timestamp() * 1000)]
