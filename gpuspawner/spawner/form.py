"""The form: the shares that are free now."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import jinja2

from gpuspawner.share import GPUShare
from gpuspawner.spawner.client import Json
from gpuspawner.spawner.errors import Refused
from gpuspawner.spawner.options import Choice
from gpuspawner.spawner.words import memory_words, model_words, size_words

#: How firmly a share is held, for somebody who has never heard of it.
GRADES = {
    "kernel": "The driver itself holds every share: nobody can use more than theirs.",
    "guarded": "Programs are held to the memory of their share however they find the driver. "
    "Only one that attacks the limit from inside could get past it.",
    "advisory": "Shares are held for programs that play by the rules. A program that sets out to get around "
    "its limit can do so on this machine.",
}

_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("gpuspawner.spawner"), autoescape=True, trim_blocks=True, lstrip_blocks=True
)


async def options_form(spawner: Any) -> str:
    """The form's HTML for `spawner` (JupyterHub's `options_form`); a sentence where the service is down."""
    try:
        answer = await spawner.service.offers()
    except Refused as refused:
        return render({}, Choice(), problem=refused.jupyterhub_message)
    return render(answer, spawner.choice, default_share=spawner.default_share)


def render(answer: Json, last: Choice, *, default_share: str = "1/4", problem: str | None = None) -> str:
    """The form's HTML from the service's answer to GET /offers and the person's `last` choice."""
    offers = [_shown(offer, answer.get("currency", "")) for offer in answer.get("offers", [])]
    chosen = preselected(answer.get("offers", []), last, default_share)
    for offer in offers:
        offer["checked"] = offer["value"] == chosen
    if not problem and not offers:
        problem = "This machine has no cards that can be shared out."
    groups = [
        {"model": model, "title": next(iter(same))["model_name"]}
        for model, same in groupby(offers, key=lambda offer: offer["model"])
    ]
    return _templates.get_template("form.html").render(
        problem=problem,
        offers=offers,
        groups=groups,
        startable=chosen is not None,
        simulated=bool(answer.get("simulated")),
        grade=GRADES.get(answer.get("grade", "")),
    )


def preselected(offers: list[Json], last: Choice, default_share: str) -> str | None:
    """The value of the offer that is chosen to begin with: of those that are free the last choice, else the
    default, else the first. None if none is free."""
    free = [offer for offer in offers if offer["available"]]
    wanted = [last.share] if last.share else []
    wanted.append(GPUShare.parse(default_share))
    for share in wanted:
        for offer in free:
            if offer["share"] == share.amount and share.model in (None, offer["model"]):
                return _value(offer)
    for offer in free:
        if offer.get("default"):
            return _value(offer)
    return _value(free[0]) if free else None


def _value(offer: Json) -> str:
    return f"{offer['model']}:{offer['share']}"


def _shown(offer: Json, currency: str) -> Json:
    share = GPUShare.parse(offer["share"])
    price = offer["price_per_hour"]
    places = offer["free_places"]
    times = f"{share.cards} × " if share.cards > 1 else ""
    return {
        "value": _value(offer),
        "id": f"share-{offer['model']}-{share.eighths}",
        "model": offer["model"],
        "model_name": offer.get("model_name") or model_words(offer["model"]),
        "size": size_words(share)[:1].upper() + size_words(share)[1:],
        "bars": [share.eighths_per_card] * min(share.cards, 4),
        "memory": times + memory_words(offer["memory_bytes"]),
        "price": "price unknown" if price is None else f"{price} {currency} per hour",
        "places": None if places is None else f"{places} free" if places != 1 else "only one left",
        "available": offer["available"],
        "reason": offer["reason"] or "Taken at the moment.",
    }
