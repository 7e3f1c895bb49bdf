"""Claims as the API server shows them, and what is remembered of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuspawner.errors import InvalidInput
from gpuspawner.node.dra.claims import Claims, Outcome, Prepared, Wish, allocation, wish

NODE = "node-1"


def result(eighths: object = "2", device: str = "gpu-1", share: str | None = "s-1", **more: Any) -> dict[str, Any]:
    found = {"request": "card", "driver": "gpu.gpuspawner.io", "pool": NODE, "device": device, **more}
    if share:
        found["shareID"] = share
    if eighths is not None:
        found["consumedCapacity"] = {"eighths": eighths}
    return found


def claim(*results: dict[str, Any], uid: str = "u-1", annotations: dict[str, str] | None = None) -> dict[str, Any]:
    reserved = [{"resource": "pods", "name": "p", "uid": "pod-1"}]
    allocated = {"allocation": {"devices": {"results": list(results)}}, "reservedFor": reserved} if results else {}
    meta = {"namespace": "hub", "name": "c", "uid": uid, "annotations": annotations or {}}
    return {"metadata": meta, "status": allocated}


def test_an_allocation() -> None:
    found = allocation(claim(result()), NODE)
    assert found is not None
    assert [(part.device, part.share_id, part.eighths) for part in found.parts] == [("gpu-1", "s-1", 2)]
    assert found.pods == ("pod-1",)


def test_another_allocation_of_the_same_claim_is_another_session() -> None:
    one, other = allocation(claim(result()), NODE), allocation(claim(result(share="s-2")), NODE)
    assert one is not None
    assert other is not None
    assert one.session != other.session
    assert one.session.startswith("u-1-")


def test_none_of_ours() -> None:
    assert allocation(claim(), NODE) is None
    assert allocation({"metadata": claim()["metadata"]}, NODE) is None
    assert allocation(claim(result(driver="gpu.other.io")), NODE) is None
    assert allocation(claim(result(pool="node-2")), NODE) is None


@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([result("0")], "no eighths"),
        ([result(None)], "no eighths"),
        ([result("500m")], "500m"),
        ([result(adminAccess=True)], "admin access"),
        ([result("8"), result("4", "gpu-2", "s-2")], "whole"),
        ([result("8"), result("8", share="s-2")], "twice"),
    ],
)
def test_what_cannot_be_served_is_refused(results: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        allocation(claim(*results), NODE)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, None),
        ({"gpuspawner.io/request": "1"}, None),
        ({"gpuspawner.io/eighths": "4", "gpuspawner.io/request": "7"}, Wish(7, 4, False, False)),
        (
            {"gpuspawner.io/eighths": "1", "gpuspawner.io/request": "8", "gpuspawner.io/forced": "true"},
            Wish(8, 1, True, False),
        ),
    ],
)
def test_a_wish(annotations: dict[str, str], expected: Wish | None) -> None:
    assert wish(claim(annotations=annotations)) == expected


@pytest.mark.parametrize(
    ("eighths", "number"), [("3", "1"), ("0", "1"), ("16", "1"), ("x", "1"), ("4", "0"), ("4", "-1"), ("4", "")]
)
def test_a_wish_that_cannot_be_read_names_what_is_wrong(eighths: str, number: str) -> None:
    found = wish(claim(annotations={"gpuspawner.io/eighths": eighths, "gpuspawner.io/request": number}))
    assert isinstance(found, Outcome)
    assert found.reason == "Invalid"
    assert "Allowed:" in found.message
    assert repr(eighths if number == "1" else number) in found.message


def test_a_wish_without_number_is_not_served() -> None:
    assert isinstance(wish(claim(annotations={"gpuspawner.io/eighths": "4"})), Outcome)


def prepared() -> Prepared:
    found = allocation(claim(result()), NODE)
    assert found is not None
    return Prepared(found.session, found.namespace, found.name, found.uid, found.parts, found.pods)


def test_what_is_remembered_is_read_again(tmp_path: Path) -> None:
    store = Claims(tmp_path / "claims.sqlite")
    store.put(prepared())
    answered = store.answer(prepared().session, 3, Outcome("NoRoom", "Only 1/8 is free."))
    store.close()
    again = Claims(tmp_path / "claims.sqlite")
    assert again.all() == [answered]
    assert again.get(prepared().session) == replace(
        prepared(), number=3, outcome=Outcome("NoRoom", "Only 1/8 is free.")
    )
    assert again.of_uid("u-1") == [answered]
    again.remove(prepared().session)
    again.close()
    assert Claims(tmp_path / "claims.sqlite").all() == []
