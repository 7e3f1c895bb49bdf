"""What the node publishes: a ResourceSlice with its cards, each with the eighths that the scheduler may count on.

How many that are is said by `gpuspawner.capacity.published`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpuspawner import kubernetes_names as names
from gpuspawner.capacity import Charge, Key, requestable
from gpuspawner.node.dra.claims import Part, Prepared
from gpuspawner.node.health import Health
from gpuspawner.node.records import Record

#: Kubernetes' longest text of an attribute.
_LONGEST = 64


def key_of(uid: str, part: Part) -> Key:
    """By which the protocol knows an allocation of one card."""
    return Key(uid, part.share_id or part.device)


def charges(
    cards: Mapping[str, str], records: Iterable[Record], claims: Mapping[str, Prepared]
) -> dict[str, dict[Key, Charge]]:
    """What each card (by uuid) is charged with. `cards`: the device's name by uuid. `claims`: by session. Of a record
    whose claim nobody remembers nothing is promised any more, so that it counts as ended."""
    found: dict[str, dict[Key, Charge]] = {uuid: {} for uuid in cards}
    for record in records:
        claim = claims.get(record.session)
        parts = {part.device: part for part in claim.parts} if claim else {}
        for uuid in record.cards:
            if uuid not in cards:
                continue
            part = parts.get(cards[uuid])
            if claim is None or part is None:
                charge = Charge(Key(record.session, cards[uuid]), 1, 0, record.charged, held=True)
            else:
                limit = 0 if record.state == "held" else record.eighths
                held = record.state == "held"
                charge = Charge(key_of(claim.uid, part), part.eighths, limit, record.charged, held, claim.number)
            found[uuid][charge.key] = charge
    return found


@dataclass(frozen=True)
class Device:
    """A card as it is published. `attributes`: by name, as Kubernetes writes them."""

    name: str
    attributes: Mapping[str, Mapping[str, Any]]

    def shown(self, count: int, health: Health, since: float) -> dict[str, Any]:
        """The device with `count` eighths to count on. `since` when it is in that health, seconds since the epoch."""
        content: dict[str, Any] = {
            "name": self.name,
            "attributes": dict(self.attributes),
            "allowMultipleAllocations": True,
            "capacity": {names.EIGHTHS: _capacity(count)},
        }
        if not health.usable:
            when = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            taint = {"key": names.HEALTH_TAINT, "value": health.state, "effect": "NoSchedule", "timeAdded": when}
            content["taints"] = [taint]
        return content


def _capacity(count: int) -> dict[str, Any]:
    """Every value that may be asked for has to be within what there is; of nothing, nothing may be asked."""
    allowed = [str(each) for each in requestable(count)]
    policy = {"requestPolicy": {"default": allowed[0], "validValues": allowed}} if allowed else {}
    return {"value": str(count), **policy}


def attribute(value: str | int | bool | None) -> dict[str, Any] | None:
    """A value as Kubernetes writes attributes; None for what is not known."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value[:_LONGEST]}


def slice_of(node: str, node_uid: str | None, devices: list[dict[str, Any]]) -> dict[str, Any]:
    """The ResourceSlice of a node. `node_uid`: the node owns it, so that it goes with the node."""
    metadata: dict[str, Any] = {"name": slice_name(node)}
    if node_uid:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node_uid, "controller": True}
        metadata["ownerReferences"] = [owner]
    # One slice is replaced as a whole, so that its pool's generation need not change (as the upstream helper does).
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata,
        "spec": {"driver": names.DRIVER, "nodeName": node, "pool": pool, "devices": devices},
    }


def slice_name(node: str) -> str:
    """The name of a node's slice, which is the driver's and the node's."""
    return f"{node}-{names.DRIVER}"
