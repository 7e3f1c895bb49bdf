"""What JupyterHub's scopes allow."""

import pytest

from gpuspawner.service.auth import Action, Principal, _ledger_name


@pytest.mark.parametrize(
    ("scope", "action", "user", "server", "allowed"),
    [
        ("custom:gpuspawner:resize!user=ann", "resize", "ann", "", True),
        ("custom:gpuspawner:resize!user=ann", "resize", "ann", "lab", True),
        ("custom:gpuspawner:resize!user=ann", "resize", "anna", "", False),
        ("custom:gpuspawner:resize!user=ann", "resize", "bob", "", False),
        ("custom:gpuspawner:resize!user=ann", "read", "ann", "", False),
        ("custom:gpuspawner:resize!server=ann/lab", "resize", "ann", "lab", True),
        ("custom:gpuspawner:resize!server=ann/lab", "resize", "ann", "", False),
        ("custom:gpuspawner:resize!server=ann/", "resize", "ann", "", True),
        ("custom:gpuspawner:resize!server=ann/", "resize", "ann", "lab", False),
        ("custom:gpuspawner:resize!group=lab", "resize", "ann", "", False),
        ("custom:gpuspawner:resize", "resize", "anyone", "", True),
        ("custom:gpuspawner:admin", "resize", "anyone", "x", True),
        ("custom:gpuspawner:admin!user=ann", "read", "bob", "", False),
        ("custom:gpuspawner:admin!user=ann", "admin", "ann", "", True),
        ("custom:gpuspawner:readmore", "read", "ann", "", False),
        ("access:servers!user=ann", "read", "ann", "", False),
        ("custom:gpuspawner:read!user=ann", "read", None, None, True),
    ],
)
def test_scopes(scope: str, action: Action, user: str | None, server: str | None, allowed: bool) -> None:
    assert Principal("ann", frozenset({scope})).may(action, user, server) is allowed


def test_no_scopes_no_rights_and_the_hub_may_all() -> None:
    assert not Principal("ann").may("read")
    assert Principal("hub", hub=True).may("admin", "ann", "")


def test_a_narrowed_administrator_is_not_everybodys() -> None:
    narrowed = Principal("ann", frozenset({"custom:gpuspawner:admin!user=bob"}))
    assert narrowed.may("admin", "bob", "")
    assert not narrowed.may("admin", "cy", "")
    assert not narrowed.may("admin"), "that would be the whole ledger"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"name": "ann", "kind": "user"}, "ann"),
        ({"name": "hub", "kind": "user"}, "user/hub"),
        ({"name": "node", "kind": "user"}, "user/node"),
        ({"name": "ann", "kind": "service"}, "service/ann"),
    ],
)
def test_nobody_signs_in_as_a_part_of_ours(model: dict[str, str], name: str) -> None:
    assert _ledger_name(model) == name
