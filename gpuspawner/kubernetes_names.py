"""What service, scheduler and node call things on Kubernetes. Pure values, no I/O.

A share is a device request in a ResourceClaim; the node publishes each card as a device with one consumable capacity.
Wanted: two annotations of the claim, which only the service may write. In force: `status.devices[]` of the claim, which
only the node's agent writes.
"""

from __future__ import annotations

import hashlib
import re

#: The DRA driver: what claims are allocated from, and the domain of attributes and capacities.
DRIVER = "gpu.gpuspawner.io"
DEVICE_CLASS = "gpuspawner"
#: The one capacity of a card. Integers only.
EIGHTHS = "eighths"

#: Eighths of the card that the claim's session should have: a whole number as text.
WANTED_EIGHTHS = "gpuspawner.io/eighths"
#: Which wish that is: a whole number as text, from 1, one higher with each. Written together with the eighths, in one
#: PATCH. A number that was answered is never looked at again, so that a late write cannot undo a later one.
WANTED_NUMBER = "gpuspawner.io/request"
#: "true" where a shrink is to happen even below what is in use; "false" or absent otherwise.
WANTED_FORCED = "gpuspawner.io/forced"
#: "true" where the session may compute with what others leave idle.
WANTED_BURST = "gpuspawner.io/burst"

#: Annotation of a slice: which start of the node's agent wrote it.
STARTED = "gpuspawner.io/started"

#: Labels of claims and pods that the service made.
SESSION_LABEL = "gpuspawner.io/session"
USER_LABEL = "gpuspawner.io/user"
#: Which installation's: a service touches its own alone, and several share a namespace.
INSTANCE_LABEL = "gpuspawner.io/instance"
#: Annotations of a session's claim, for whoever finds it: whose it is and what was asked for at the start.
USER = "gpuspawner.io/user-name"
SERVER = "gpuspawner.io/server-name"
SHARE = "gpuspawner.io/share"
#: uuids of the cards that the claim asks for, joined by commas.
CARDS = "gpuspawner.io/cards"

#: Conditions in `status.devices[].conditions`. `Ready`: the share is in force; False with NoRoom where it was refused
#: at prepare, so that whatever uses the claim has to be placed anew. `Resized`: how the last wish ended;
#: False with reason and message where it was refused. Which wish that was stands in `data.request`.
READY = "Ready"
RESIZED = "Resized"

#: Keys of `status.devices[].data`.
DATA_EIGHTHS = "eighths"  # in force now
DATA_MEMORY = "memoryBytes"  # allowed on this card now
DATA_UUID = "uuid"
DATA_SIMULATED = "simulated"
DATA_GRADE = "grade"  # kernel, guarded, advisory
DATA_NEED_TO_FREE = "needToFreeBytes"  # where the last wish was refused with InUse
DATA_REQUEST = "request"  # the last wish that was answered; 0: none yet

#: Reasons of conditions. Resized is True with the first, else False.
REASON_IN_FORCE = "InForce"
REASON_NO_ROOM = "NoRoom"
REASON_IN_USE = "InUse"  # a voluntary shrink below what the driver shows in use; the message says how much to free
REASON_NOT_RESIZABLE = "NotResizable"
REASON_INVALID = "Invalid"
REASON_CARD_FAILED = "CardFailed"
REASON_ENDED = "Ended"
REASON_UNAVAILABLE = "Unavailable"
#: A claim that is not Ready for one of these has no use any more; what needs it has to be placed again.
REASONS_TO_PLACE_AGAIN = (REASON_NO_ROOM, REASON_CARD_FAILED)

#: How the reason begins of a session that ended because its start could not go on where it had been placed.
PLACE_AGAIN = "to be placed again"

#: Attributes of a device, under DRIVER as their domain. What is not known is left out.
ATTRIBUTE_UUID = "uuid"
ATTRIBUTE_MODEL = "model"  # the slug, "h100-80gb"
ATTRIBUTE_PRODUCT = "productName"  # as the driver says it, at most 64 characters
ATTRIBUTE_VENDOR = "vendor"
ATTRIBUTE_GENERATION = "generation"  # the architecture, "hopper"
ATTRIBUTE_MEMORY = "memoryBytes"
ATTRIBUTE_INDEX = "index"
ATTRIBUTE_NUMA = "numaNode"
ATTRIBUTE_ISLAND = "nvlinkIsland"  # cards of a node with the same number reach each other over NVLink
ATTRIBUTE_NICS = "rdmaNics"  # on the same switch, joined by commas
ATTRIBUTE_DRIVER = "driverVersion"
ATTRIBUTE_GRADE = "grade"
ATTRIBUTE_SIMULATED = "simulated"
ATTRIBUTE_RESIZE = "resize"  # live, restart, none
#: Kubernetes' own names for where a card sits.
ATTRIBUTE_PCI = "resource.kubernetes.io/pciBusID"
ATTRIBUTE_PCI_ROOT = "resource.kubernetes.io/pcieRoot"

#: Key of the taint on a device that is out of service (effect NoSchedule); its value is a code for why.
HEALTH_TAINT = "gpu.gpuspawner.io/health"

_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z", re.ASCII)


def device_name(uuid: str) -> str:
    """The device's name for a card: its uuid in lower case as a DNS label, "GPU-5D3F…" -> "gpu-5d3f…".

    Where characters had to go a part of the uuid's hash stands behind it, so that two cards never share a name.
    """
    lower = uuid.lower()
    if _DNS_LABEL.match(lower):
        return lower
    safe = re.sub(r"[^a-z0-9]+", "-", lower).strip("-")[:48].rstrip("-") or "card"
    return f"{safe}-{hashlib.sha256(uuid.encode()).hexdigest()[:10]}"


def whole_number(text: str | None) -> int | None:
    """A whole number that an annotation gives as text, "0" to "999999999"; None for anything else."""
    if text is None or not re.fullmatch(r"0|[1-9][0-9]{0,8}", text, re.ASCII):
        return None
    return int(text)
