"""Kubernetes' objects read as cards and sessions, and the claims of sessions written. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from gpuspawner import kubernetes_names as names
from gpuspawner.card import Card
from gpuspawner.errors import InvalidInput
from gpuspawner.fleet.base import CardHealth, Grade, HealthState, Resize
from gpuspawner.share import EIGHTHS_PER_CARD, GPUShare

Object = Mapping[str, Any]

CLAIM_API = "resource.k8s.io/v1"
#: The one request of a session's claim.
REQUEST = "card"
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,95}\Z", re.ASCII)
_PLAIN = re.compile(r"[^A-Za-z0-9_.-]+")
_GRADES: tuple[Grade, ...] = ("kernel", "guarded", "advisory")
_RESIZES: tuple[Resize, ...] = ("live", "restart", "none")
_TAINTS_THAT_KEEP_OFF = ("NoSchedule", "NoExecute")


class DeviceKey(NamedTuple):
    """A card as claims name it."""

    pool: str
    device: str


@dataclass(frozen=True)
class PublishedCard:
    """A card as its node's slice shows it. `published`: eighths that it offers in all, as the node's rule has it."""

    key: DeviceKey
    node: str
    card: Card
    published: int
    health: CardHealth
    grade: Grade
    resize: Resize
    island: int | None


class Taken(NamedTuple):
    """What an allocation or a claim under way takes of a card."""

    key: DeviceKey
    eighths: int


@dataclass(frozen=True)
class Answer:
    """What the node says of a session's claim. `request`: the last wish it answered; `granted`: whether that is in
    force, None where there was none; `reason`, `message`: of a refusal."""

    eighths: int
    request: int
    granted: bool | None
    reason: str = ""
    message: str = ""
    need_to_free_bytes: int | None = None


@dataclass(frozen=True)
class SessionClaim:
    """A claim that a service made for a session.

    `instance`: which service. `pinned`: the uuids that it asks for. `wanted`, `request`: the newest wish. `ready`: None
    before the node has said anything. `refused`: why the node did not take it, None where it did or has not said.
    """

    name: str
    namespace: str
    uid: str
    version: str
    session: str
    instance: str
    user: str
    server: str
    share: GPUShare
    pinned: tuple[str, ...]
    wanted: int
    request: int
    burst: bool
    created: str
    ending: bool
    allocated: tuple[Taken, ...]
    pods: tuple[str, ...]
    answer: Answer | None
    refused: str | None


def published_cards(found: Object) -> list[PublishedCard]:
    """The cards of a ResourceSlice of our driver. What cannot be read is left out."""
    spec = found["spec"]
    if spec.get("driver") != names.DRIVER:
        return []
    pool, node = spec["pool"]["name"], spec.get("nodeName") or spec["pool"]["name"]
    return [card for each in spec.get("devices") or [] if (card := _published_card(pool, node, each)) is not None]


def _published_card(pool: str, node: str, device: Object) -> PublishedCard | None:
    attributes = {name.removeprefix(f"{names.DRIVER}/"): value for name, value in device.get("attributes", {}).items()}
    uuid = attributes.get(names.ATTRIBUTE_UUID, {}).get("string", "")
    memory = attributes.get(names.ATTRIBUTE_MEMORY, {}).get("int")
    if not _UUID.match(uuid) or type(memory) is not int or memory <= 0:
        return None
    grade = attributes.get(names.ATTRIBUTE_GRADE, {}).get("string")
    resize = attributes.get(names.ATTRIBUTE_RESIZE, {}).get("string")
    return PublishedCard(
        key=DeviceKey(pool, device["name"]),
        node=node,
        card=Card(
            uuid=uuid,
            index=int(attributes.get(names.ATTRIBUTE_INDEX, {}).get("int", 0)),
            name=_product(attributes),
            memory_bytes=memory,
        ),
        published=_eighths(device.get("capacity", {}).get(names.EIGHTHS, {}).get("value")) or 0,
        health=_health(device.get("taints") or []),
        grade=cast(Grade, grade) if grade in _GRADES else "advisory",
        resize=cast(Resize, resize) if resize in _RESIZES else "live",
        island=attributes.get(names.ATTRIBUTE_ISLAND, {}).get("int"),
    )


def _product(attributes: Mapping[str, Object]) -> str:
    name: str = attributes.get(names.ATTRIBUTE_PRODUCT, {}).get("string") or "card"
    simulated = attributes.get(names.ATTRIBUTE_SIMULATED, {}).get("bool", False)
    return f"{name} (simulated)" if simulated and not name.endswith(" (simulated)") else name


def _health(taints: list[Object]) -> CardHealth:
    for taint in taints:
        if taint.get("effect") in _TAINTS_THAT_KEEP_OFF:
            ours = taint.get("key") == names.HEALTH_TAINT
            reason = taint.get("value") if ours else f"tainted with {taint.get('key')}"
            return CardHealth("failed", f"The node has taken it out of service ({reason}).")
    state: HealthState = "ok"
    return CardHealth(state)


def takes(claim: Object) -> list[Taken]:
    """What a claim's allocation takes of our driver's cards."""
    results = (claim.get("status", {}).get("allocation") or {}).get("devices", {}).get("results") or []
    found = []
    for result in results:
        if result.get("driver") == names.DRIVER and not result.get("adminAccess"):
            eighths = _eighths((result.get("consumedCapacity") or {}).get(names.EIGHTHS))
            whole = 0 if result.get("shareID") else EIGHTHS_PER_CARD
            found.append(Taken(DeviceKey(result["pool"], result["device"]), whole if eighths is None else eighths))
    return found


def session_claim(claim: Object) -> SessionClaim | None:
    """A claim read as a session's; None where no service of ours made it, or its words cannot be understood."""
    meta = claim["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    session, instance = labels.get(names.SESSION_LABEL), labels.get(names.INSTANCE_LABEL)
    if not session or not instance:
        return None
    try:
        share = GPUShare.parse(notes.get(names.SHARE))
    except InvalidInput:
        return None
    status = claim.get("status") or {}
    devices = [each for each in status.get("devices") or [] if each.get("driver") == names.DRIVER]
    return SessionClaim(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        version=meta["resourceVersion"],
        session=session,
        instance=instance,
        user=notes.get(names.USER, ""),
        server=notes.get(names.SERVER, ""),
        share=share,
        pinned=tuple(_words(notes.get(names.CARDS))),
        wanted=names.whole_number(notes.get(names.WANTED_EIGHTHS)) or share.eighths_per_card,
        request=names.whole_number(notes.get(names.WANTED_NUMBER)) or 0,
        burst=notes.get(names.WANTED_BURST) == "true",
        created=meta.get("creationTimestamp") or "",
        ending="deletionTimestamp" in meta,
        allocated=tuple(takes(claim)),
        pods=tuple(each["uid"] for each in status.get("reservedFor") or [] if each.get("resource") == "pods"),
        answer=_answer(devices),
        refused=refusal(claim),
    )


def _answer(devices: list[Object]) -> Answer | None:
    """What the node says of the first of the cards; several are held whole and never change."""
    data: Object = next((each.get("data") or {} for each in devices), {})
    eighths, request = data.get(names.DATA_EIGHTHS), data.get(names.DATA_REQUEST)
    if type(eighths) is not int or type(request) is not int:
        return None
    resized = _condition(devices[0], names.RESIZED)
    need = data.get(names.DATA_NEED_TO_FREE)
    return Answer(
        eighths=eighths,
        request=request,
        granted=None if resized is None else resized.get("status") == "True",
        reason=(resized or {}).get("reason") or "",
        message=(resized or {}).get("message") or "",
        need_to_free_bytes=need if type(need) is int else None,
    )


def refusal(claim: Object) -> str | None:
    """Why a node refused to prepare a claim, of whomever; None where it did not."""
    for device in (claim.get("status") or {}).get("devices") or []:
        ready = _condition(device, names.READY) if device.get("driver") == names.DRIVER else None
        if ready and ready.get("status") == "False" and ready.get("reason") in names.REASONS_TO_PLACE_AGAIN:
            return str(ready.get("message") or ready["reason"])
    return None


def _condition(device: Object, kind: str) -> Object | None:
    return next((each for each in device.get("conditions") or [] if each.get("type") == kind), None)


def claim_manifest(
    session: str,
    instance: str,
    namespace: str,
    user: str,
    server: str,
    share: GPUShare,
    cards: tuple[str, ...],
    *,
    burst: bool = False,
) -> dict[str, Any]:
    """The claim of a new session for exactly those cards. Raises InvalidInput for a uuid that cannot be one."""
    for uuid in cards:
        if not _UUID.match(uuid):
            raise InvalidInput(f"card: {uuid[:40]!r} is not allowed. Allowed: a card's uuid.", field="card", given=uuid)
    uuids = json.dumps(list(cards))
    expression = f'device.attributes["{names.DRIVER}"].{names.ATTRIBUTE_UUID} in {uuids}'
    exactly = {
        "deviceClassName": names.DEVICE_CLASS,
        "allocationMode": "ExactCount",
        "count": len(cards),
        "selectors": [{"cel": {"expression": expression}}],
        "capacity": {"requests": {names.EIGHTHS: str(share.eighths_per_card)}},
    }
    return {
        "apiVersion": CLAIM_API,
        "kind": "ResourceClaim",
        "metadata": {
            "name": session,
            "namespace": namespace,
            "labels": session_labels(session, instance, user),
            "annotations": {
                names.USER: user,
                names.SERVER: server,
                names.SHARE: str(share),
                names.CARDS: ",".join(cards),
                **wish(share.eighths_per_card, 1, burst=burst),
            },
        },
        "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}},
    }


def session_labels(session: str, instance: str, user: str) -> dict[str, str]:
    """The labels of a session's claim and pod."""
    return {
        "app.kubernetes.io/managed-by": "gpuspawner",
        names.INSTANCE_LABEL: instance,
        names.SESSION_LABEL: session,
        names.USER_LABEL: label_value(user),
    }


def wish(eighths: int, number: int, *, burst: bool, forced: bool = False) -> dict[str, str]:
    """The annotations of a wish."""
    return {
        names.WANTED_EIGHTHS: str(eighths),
        names.WANTED_NUMBER: str(number),
        names.WANTED_BURST: "true" if burst else "false",
        names.WANTED_FORCED: "true" if forced else "false",
    }


def label_value(text: str) -> str:
    """Text as a label may have it, for people who search; the whole of it stands in the annotation."""
    return _PLAIN.sub("-", text)[:63].strip("-._")


def _words(text: str | None) -> list[str]:
    return [word for word in (text or "").split(",") if word]


def _eighths(quantity: Any) -> int | None:
    """A whole quantity; None for what is not one, as what is not there."""
    return names.whole_number(str(quantity)) if quantity is not None else None


def node_is_ready(node: Object) -> Literal["ready", "not_ready", "cordoned"]:
    """Whether pods can start on a node now."""
    conditions = node.get("status", {}).get("conditions") or []
    if not any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions):
        return "not_ready"
    return "cordoned" if node.get("spec", {}).get("unschedulable") else "ready"
