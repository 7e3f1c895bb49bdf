"""The form: what can be started now, and what the person chose the last time, by a link, or a moment ago."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any

import jinja2

from gpuspawner.share import GPUShare
from gpuspawner.spawner import options
from gpuspawner.spawner.client import Json
from gpuspawner.spawner.environments import OWN, Environment
from gpuspawner.spawner.errors import Refused
from gpuspawner.spawner.options import Choice
from gpuspawner.spawner.steps import Failure
from gpuspawner.spawner.words import memory_words, model_words, size_words, wait_words

#: How firmly a share is held, for somebody who has never heard of it.
GRADES = {
    "kernel": "The driver or the card itself holds the memory of every share: nobody can use more than theirs. "
    "A program that sets out to may still compute for longer than its share.",
    "guarded": "Programs are held to the memory of their share however they find the driver. "
    "Only one that attacks the limit from inside could get past it.",
    "advisory": "Shares are held for programs that play by the rules. A program that sets out to get around "
    "its limit can do so on this machine.",
}
#: The classes of work, for somebody who has never heard of the queue.
KINDS = {
    "inference-urgent": "Urgent: somebody waits for each answer. Served first",
    "interactive": "Interactive: I work in the notebook. The usual one",
    "training": "Training: it may be made smaller for more urgent work, and comes after it",
    "batch": "Batch: whenever there is room. Last in line",
}
_ADVICE = {
    "no_room": ("Choose a smaller share.", "Or try again later: a place is free as soon as somebody stops a server."),
    "left_queue": ("Go back to the form, and choose again or wait again.",),
    "unavailable": ("Try again in a minute.", "If it stays so, tell whoever runs this hub."),
    "ended": (
        "Read the last lines of the server's log below.",
        "If you changed packages or settings in your home folder, undo that and try again.",
        "If another environment is offered, try that one.",
    ),
    "silent": (
        "Try again: a busy machine starts slowly.",
        "If it stays so, show the log below to whoever runs this hub.",
    ),
}
_ADVICE_ELSE = ("Go back to the form and choose again.", "If it stays so, tell whoever runs this hub.")

_templates = jinja2.Environment(
    loader=jinja2.PackageLoader("gpuspawner.spawner", "templates/hub"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)


@dataclass(frozen=True)
class Link:
    """What the address of the form chooses beforehand, and what of it cannot be chosen, in sentences."""

    choice: Choice = field(default_factory=Choice)
    notices: list[str] = field(default_factory=list)
    cancelled: bool = False


@dataclass(frozen=True)
class Posted:
    """The form that is being answered. JupyterHub shows a refused form anew with the default server's spawner,
    whichever server it was for."""

    spawner: Any
    fields: dict[str, list[Any]]

    @property
    def choice(self) -> Choice:
        """What was chosen in it, as far as it can be read."""
        known = {key: [str(value).encode() for value in values] for key, values in self.fields.items()}
        return options.read_link(known)[0]


# each request is a task with a context of its own
_posted: ContextVar[Posted | None] = ContextVar("posted", default=None)


def options_from_form(form_data: dict[str, list[Any]], spawner: Any = None) -> dict[str, Any]:
    """JupyterHub's `options_from_form`."""
    if spawner is None:
        return options.options_from_form(form_data)
    _posted.set(Posted(spawner, form_data))
    spawner.claim_start()
    found: dict[str, Any] = spawner.read_form(form_data)
    return found


async def options_form(spawner: Any) -> str:
    """The form's HTML for `spawner` (JupyterHub's `options_form`); a sentence where the service is down."""
    posted = _posted.get()
    if posted is not None and posted.spawner.user is spawner.user:
        spawner = posted.spawner
        link, failure = Link(), spawner.failure
        chosen = merged(spawner.choice, posted.choice)
    else:
        link, failure = spawner.link, None
        chosen = merged(spawner.choice, link.choice)
    try:
        answer = await spawner.service.offers(spawner.user.name)
    except Refused as refused:
        return render({}, Choice(), problem=refused.jupyterhub_message)
    return render(
        answer,
        chosen,
        default_share=spawner.default_share,
        environments=await spawner.offered_environments(),
        link=link,
        failure=failure,
        no_card=spawner.offer_no_card,
        admin=bool(spawner.user.admin),
        waits=spawner.longest_wait > 0,
    )


def merged(last: Choice, newest: Choice) -> Choice:
    """The newest choice, and of the last one what the newest does not speak of."""
    share = newest.share or last.share
    card = newest.card if newest.share else newest.card or last.card
    return Choice(
        share,
        newest.environment or last.environment,
        newest.burst if newest.burst is not None else last.burst,
        card if share is None or share.cards else None,
        last.extra if newest.environment in (None, last.environment) else (),
        newest.wait if newest.wait is not None else last.wait,
        # how long it runs and by when is said anew each time
        newest.kind or last.kind,
        newest.run_seconds,
        newest.deadline,
    )


def render(
    answer: Json,
    chosen: Choice,
    *,
    default_share: str = "1/4",
    problem: str | None = None,
    environments: list[Environment] | None = None,
    link: Link | None = None,
    failure: Failure | None = None,
    no_card: bool = True,
    admin: bool = False,
    waits: bool = False,
) -> str:
    """The form's HTML from the service's answer to GET /offers and what is `chosen` beforehand. `waits`: who
    chooses what is taken waits for it."""
    link, environments = link or Link(), environments or [OWN]
    offers, currency = answer.get("offers", []), answer.get("currency", "")
    value = preselected(offers, chosen, default_share, no_card=not answer.get("no_card_reason"))
    notices = [*link.notices, *_missing(offers, link.choice, environments, answer.get("cards"))]
    if admin and answer.get("policy_problem"):
        notices.append(
            f"For administrators: the policy file is not used, the last good one is in force. "
            f"{answer['policy_problem']}"
        )
    no_card_reason = answer.get("no_card_reason")
    allowed = answer.get("environments")
    refused = {
        each.name: f"The policy allows {', '.join(allowed) or 'none'}."
        for each in environments
        if allowed is not None and each.name not in allowed
    }
    shown = [_shown(offer, currency, value, waits) for offer in offers]
    if not problem and not offers and not no_card:
        problem = "This machine has no cards that can be shared out."
    names = [environment.name for environment in environments]
    card = chosen.card if chosen.card in {card["uuid"] for card in answer.get("cards") or []} else None
    return _templates.get_template("gpu/form.html").render(
        problem=problem,
        groups=[
            {"model": model, "title": group[0]["model_name"], "offers": group}
            for model, same in groupby(
                [offer for offer in shown if offer["cards"] == 1], key=lambda offer: offer["model"]
            )
            if (group := list(same))
        ],
        several=[offer for offer in shown if offer["cards"] > 1],
        # what somebody may not have at all is not taken by others
        full=any(offer.get("allowed", True) for offer in offers) and not any(offer["available"] for offer in offers),
        no_card=no_card,
        no_card_chosen=value == "none",
        no_card_reason=no_card_reason,
        refused=refused,
        waits=any(offer["waits"] for offer in shown),
        may_wait=waits,
        startable=(no_card and not no_card_reason) or any(offer["available"] or offer["waits"] for offer in shown),
        environments=environments,
        environment=chosen.environment
        if chosen.environment in names and chosen.environment not in refused
        else next((name for name in names if name not in refused), names[0]),
        extra=dict(chosen.extra),
        options=any(environment.options for environment in environments),
        burst=_burst(answer, chosen),
        kinds=_kinds(answer, chosen) if waits else [],
        run_hours="" if chosen.run_seconds is None else f"{chosen.run_seconds / 3600:g}",
        deadline="" if chosen.deadline is None else _local(chosen.deadline),
        zone=datetime.now().astimezone().tzname(),
        cards=[_card(card_) for card_ in answer.get("cards") or []],
        card=card,
        opened=bool(card or chosen.run_seconds or chosen.deadline)
        or chosen.kind not in (None, *(kind["name"] for kind in answer.get("kinds") or [] if kind["default"]))
        or chosen.environment in names[1:]
        or any(offer["checked"] and offer["cards"] > 1 for offer in shown),
        simulated=bool(answer.get("simulated")),
        grade=GRADES.get(_weakest(offers) or answer.get("grade", "")),
        notices=notices[:5],
        cancelled=link.cancelled,
        failure=failure,
        at=datetime.now().astimezone().strftime("%H:%M:%S"),
    )


def _weakest(offers: list[Json]) -> str | None:
    """The weakest grade of all offers: what the form says of limits must hold for each of them."""
    grades = {offer.get("grade") for offer in offers}
    return next((grade for grade in reversed(GRADES) if grade in grades), None)


def preselected(offers: list[Json], chosen: Choice, default_share: str, *, no_card: bool = True) -> str | None:
    """The value of the offer that is chosen to begin with: of those that are free the one `chosen`, else the
    default, else the first. None if none is free: nobody should start without a card by not looking."""
    if chosen.share is not None and not chosen.share.cards and no_card:
        return "none"
    free = [offer for offer in offers if offer["available"]]
    wanted = [chosen.share] if chosen.share and chosen.share.cards else []
    wanted.append(GPUShare.parse(default_share))
    for share in wanted:
        for offer in free:
            if offer["share"] == share.amount and _is_model(offer, share.model):
                return _value(offer)
    for offer in free:
        if offer.get("default"):
            return _value(offer)
    return _value(free[0]) if free else None


def _missing(offers: list[Json], link: Choice, environments: list[Environment], cards: list[Json] | None) -> list[str]:
    """A sentence for each part of a link that cannot be had here or now."""
    notices = []
    share = link.share
    if share is not None and share.cards:
        size, model = size_words(share), f" ({model_words(share.model)})" if share.model else ""
        same = [offer for offer in offers if offer["share"] == share.amount and _is_model(offer, share.model)]
        if not same:
            notices.append(f"The link asks for {size}{model}, which is not offered here.")
        elif not any(offer["available"] for offer in same):
            notices.append(f"The link asks for {size}{model}. {same[0]['reason'] or 'It is taken at the moment.'}")
    if link.environment not in (None, *(environment.name for environment in environments)):
        allowed = ", ".join(environment.name for environment in environments)
        notices.append(f"The link asks for the environment {link.environment!r}. Allowed: {allowed}.")
    if link.card is not None:
        if cards is None:
            notices.append("The link names a card. The exact card cannot be chosen here.")
        elif link.card not in {card["uuid"] for card in cards}:
            notices.append(f"The link asks for the card {link.card}, which is not here.")
    return notices


def _burst(answer: Json, chosen: Choice) -> bool | None:
    """Whether burst is ticked; None where the service knows no burst."""
    if answer.get("burst") is None:
        return None
    return chosen.burst if chosen.burst is not None else bool(answer["burst"])


def _kinds(answer: Json, chosen: Choice) -> list[Json]:
    """The classes of work that may be chosen, the chosen one or else the default marked."""
    known = answer.get("kinds") or []
    wanted = chosen.kind if chosen.kind in {kind["name"] for kind in known} else None
    return [
        {
            "name": kind["name"],
            "title": KINDS.get(kind["name"], kind["name"]),
            "checked": kind["name"] == wanted if wanted else kind["default"],
        }
        for kind in known
    ]


def _local(deadline: str) -> str:
    return datetime.fromisoformat(deadline).astimezone().strftime("%Y-%m-%dT%H:%M")


def _is_model(offer: Json, model: str | None) -> bool:
    return model is None or offer["model"] == model or offer["model"].startswith(f"{model}-")


def _value(offer: Json) -> str:
    return f"{offer['model']}:{offer['share']}"


def _shown(offer: Json, currency: str, chosen: str | None, waits: bool = False) -> Json:
    share = GPUShare.parse(offer["share"])
    price, places, available = offer["price_per_hour"], offer["free_places"], offer["available"]
    times = f"{share.cards} × " if share.cards > 1 else ""
    value = _value(offer)
    if not offer.get("allowed", True):
        note = offer["reason"]
    elif offer.get("can_wait") and waits and not available:
        told = {"expected_low_seconds": offer.get("expected_wait_low_seconds")}
        told["expected_high_seconds"] = offer.get("expected_wait_seconds")
        note = f"{offer['reason'] or 'Taken at the moment.'} You would wait. {wait_words(told)}"
    elif not available:
        note = offer["reason"] or "Taken at the moment."
    elif places is None:
        note = "Free"
    else:
        note = f"{places} free" if places != 1 else "only one left"
    return {
        "value": value,
        "id": f"share-{offer['model']}-{share.eighths}",
        "model": offer["model"],
        "model_name": offer.get("model_name") or model_words(offer["model"]),
        "cards": share.cards,
        "size": size_words(share)[:1].upper() + size_words(share)[1:],
        "filled": share.eighths_per_card,
        "memory": times + memory_words(offer["memory_bytes"]),
        "price": "price unknown" if price is None else f"{price} {currency} per hour",
        "note": note,
        "available": available,
        "waits": waits and not available and bool(offer.get("can_wait")),
        "checked": value == chosen,
    }


def _card(card: Json) -> Json:
    free = card["free_eighths"]
    return {
        "uuid": card["uuid"],
        "title": f"Card {card['index']}: {card['name']}, {free} of 8 eighths free",
        "available": free > 0,
    }


def failure(happened: str, code: str, held: bool, log: tuple[str, ...]) -> Failure:
    """What is said of a start that failed with `code`; `held`: it had a session already."""
    undone = (
        "The server's processes were ended, and its share of the card was given back. Nothing more is charged."
        if held
        else "Nothing was started, so nothing is held and nothing is charged."
    )
    return Failure(happened, undone, _ADVICE.get(code, _ADVICE_ELSE), log)
