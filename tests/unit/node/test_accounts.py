"""Safe names, and one account for each user for good."""

import os
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuspawner.node.accounts import FIRST_UID, Accounts, safe_name


@given(st.text(min_size=1))
def test_any_name_becomes_a_safe_one(user: str) -> None:
    name = safe_name(user)
    assert name.isascii()
    assert 1 <= len(name) <= 31
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


@pytest.mark.case("hub-12")
@given(st.sets(st.text(min_size=1, max_size=8), min_size=2, max_size=20))
def test_two_names_never_share_one(users: set[str]) -> None:
    assert len({safe_name(user) for user in users}) == len(users)


def test_a_name_made_to_look_like_another_users_safe_name_is_told_apart() -> None:
    victim = safe_name("Ann@example.org")
    assert safe_name(victim) != victim
    assert safe_name("alice") == "alice"


def test_a_name_with_somebody_elses_safe_name_cannot_be_searched_for() -> None:
    # 32 bits would fall within an hour; who finds one has the other's home
    *_, tail = safe_name("Ann@example.org").split("-")
    assert len(tail) * 5 >= 80
    assert set(tail) <= set("abcdefghijklmnopqrstuvwxyz234567")


def test_an_account_is_kept_over_restarts(tmp_path: Path) -> None:
    def accounts() -> Accounts:
        return Accounts(sqlite3.connect(tmp_path / "db"), tmp_path / "users", own_uids=os.geteuid() == 0)

    first = accounts().of("Ann@example.org")
    second = accounts().of("bob")
    assert accounts().of("Ann@example.org") == first
    assert first.home != second.home
    assert first.home.stat().st_mode & 0o777 == 0o700
    if os.geteuid() == 0:
        assert (first.uid, second.uid) == (FIRST_UID, FIRST_UID + 1)
        assert first.home.stat().st_uid == first.uid
    else:
        assert first.uid is None
