"""What a person may ask for when a server starts: `user_options`, checked before anything else happens."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from gpuspawner.errors import GPUSpawnerError, InvalidInput, shorten
from gpuspawner.share import NONE, GPUShare

KEYS = ("share", "model", "environment", "burst", "card", "wait", "kind", "run_seconds", "deadline", "profile")
_LONGEST_PROFILE = 200
_ENVIRONMENT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?\Z", re.ASCII)
_KIND = re.compile(r"[a-z](?:[a-z-]{0,30}[a-z])?\Z", re.ASCII)
_LONGEST_RUN = 10**8
_CARD = re.compile(r"[A-Za-z0-9-]{1,96}\Z", re.ASCII)
_ENVIRONMENT_ALLOWED = "lower-case letters, digits and dashes, at most 40"
#: What JupyterHub and its pages put into the addresses of the form themselves.
_NOT_OURS = ("next", "display_name", "redirects")
_TICKS = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}


_PARTS = ("share", "environment", "burst", "card", "wait", "kind", "run_seconds", "deadline")


@dataclass(frozen=True, slots=True)
class Choice:
    """A checked choice. None is the default of each: whatever share is the default of whatever model has it, the
    first environment, the service's setting for burst, any card. `card` is a uuid. `extra`: options of the
    environment's own, by name."""

    share: GPUShare | None = None
    environment: str | None = None
    burst: bool | None = None
    card: str | None = None
    extra: tuple[tuple[str, str], ...] = ()
    #: Whether to wait in the queue where there is no room; None: as a start that says nothing, which is refused.
    wait: bool | None = None
    #: For the queue: the class, how long it will run, and when (ISO 8601 with its offset) it must be done.
    kind: str | None = None
    run_seconds: float | None = None
    deadline: str | None = None

    @property
    def to_come(self) -> str | None:
        """The deadline, where it is not over: a choice is stored and started from again later."""
        if self.deadline is None or datetime.fromisoformat(self.deadline) <= datetime.now(UTC):
            return None
        return self.deadline

    @property
    def options(self) -> dict[str, Any]:
        """The choice as JupyterHub stores it."""
        options: dict[str, Any] = {}
        if self.share is not None:
            options["share"] = self.share.amount
            if self.share.model:
                options["model"] = self.share.model
        for key in _PARTS[1:]:
            if (value := getattr(self, key)) is not None:
                options[key] = value
        return options


def read_options(options: Any) -> Choice:
    """The choice in `options`, which come from anywhere: the form, JupyterHub's API, its database.

    Raises InvalidInput (ShareError for a share), naming the field, what was given and what is allowed.
    `profile` is for people to read and says nothing here; the spawner writes it itself.
    """
    if not isinstance(options, dict):
        raise invalid("user_options", options, "an object with the keys share and model")
    unknown = sorted(str(key) for key in options if key not in KEYS)
    if unknown:
        raise invalid(unknown[0], options.get(unknown[0]), "the keys " + ", ".join(KEYS), what="unknown key")
    profile = options.get("profile")
    if profile is not None and (type(profile) is not str or len(profile) > _LONGEST_PROFILE):
        raise invalid("profile", profile, f"text of at most {_LONGEST_PROFILE} characters")
    share = _share(options.get("share"), options.get("model"))
    burst, wait = options.get("burst"), options.get("wait")
    for key, value in (("burst", burst), ("wait", wait)):
        if value is not None and type(value) is not bool:
            raise invalid(key, value, "true or false")
    card = _text("card", options.get("card"), _CARD, "the uuid of a card")
    if share is not None and not share.cards and (card is not None or burst):
        raise invalid("card" if card else "burst", card or burst, f"none together with the share {NONE!r}")
    environment = _text("environment", options.get("environment"), _ENVIRONMENT, _ENVIRONMENT_ALLOWED)
    kind = _text("kind", options.get("kind"), _KIND, "the name of a class of work, such as training")
    run, deadline = _run_seconds(options.get("run_seconds")), _deadline(options.get("deadline"))
    return Choice(share, environment, burst, card, wait=wait, kind=kind, run_seconds=run, deadline=deadline)


def _run_seconds(given: Any) -> float | None:
    if given is None:
        return None
    if type(given) not in (int, float) or not 0 < given <= _LONGEST_RUN:
        raise invalid("run_seconds", given, f"a number of seconds above 0, at most {_LONGEST_RUN}")
    return float(given)


def _deadline(given: Any) -> str | None:
    if given is None:
        return None
    try:
        read = datetime.fromisoformat(given) if type(given) is str and len(given) <= 40 else None
    except ValueError:
        read = None
    if read is None or read.tzinfo is None:
        raise invalid("deadline", given, "a time with its offset, such as 2026-12-24T18:00:00+01:00")
    return read.isoformat()


def _share(given: Any, model: Any) -> GPUShare | None:
    if given is None:
        if model is not None:
            raise invalid("model", model, "a model only together with a share")
        return None
    share = GPUShare.parse(given)
    if model is None:
        return share
    if share.model is not None and share.model != model:
        raise invalid("model", model, f"{share.model!r}, the model that the share names, or none")
    return replace(share, model=model)


def _text(field: str, given: Any, pattern: re.Pattern[str], allowed: str) -> str | None:
    if given is None:
        return None
    if type(given) is not str or not pattern.match(given):
        raise invalid(field, given, allowed)
    return given


def options_from_form(form: Mapping[str, list[Any]]) -> dict[str, Any]:
    """user_options from the submitted form (lists of strings).

    JupyterHub's own fields, which start with an underscore, are left out, and so is what was left empty. Of a field
    given twice the newest counts: a checkbox follows a hidden field of its name that says what no tick means.
    `several`, a number of whole cards, goes before the share that was ticked beside it. `run_hours` becomes
    `run_seconds`, and a `deadline` without an offset is in this machine's time.
    """
    options = {key: values[-1] for key, values in form.items() if values and not key.startswith("_")}
    options = {key: value for key, value in options.items() if value != ""}
    several = options.pop("several", None)
    if several is not None:
        options["share"] = several
    share = options.get("share")
    if isinstance(share, str) and ":" in share and "model" not in options:
        options["model"], _, options["share"] = share.rpartition(":")
    _read_times(options)
    for key in ("burst", "wait"):
        if isinstance(said := options.get(key), str):
            options[key] = _TICKS.get(said.lower(), said)
    if options.get("share") == NONE:  # what was ticked about a card says nothing without one
        for key in ("burst", "card"):
            options.pop(key, None)
    return options


def _read_times(options: dict[str, Any]) -> None:
    """The form's `run_hours`, and its deadline in this machine's time; what cannot be read is left to be refused."""
    hours, deadline = options.pop("run_hours", None), options.get("deadline")
    if hours is not None:
        try:
            options["run_seconds"] = float(hours) * 3600
        except (TypeError, ValueError):
            options["run_seconds"] = hours
    if isinstance(deadline, str) and len(deadline) <= 40:
        with contextlib.suppress(ValueError, OverflowError, OSError):
            options["deadline"] = datetime.fromisoformat(deadline).astimezone().isoformat()


def read_link(query: Mapping[str, Sequence[bytes]]) -> tuple[Choice, list[str]]:
    """What a link to the form chooses beforehand (`?share=1/4&model=h100-80gb`), and a sentence for each part of it
    that nobody can choose. JupyterHub's prefix `opt-` is understood. Raises nothing."""
    options: dict[str, list[Any]] = {}
    for key, values in query.items():
        if values and not key.startswith("_") and key not in _NOT_OURS:
            options[key.removeprefix("opt-")] = [values[-1].decode("utf-8", "replace")]
    given = options_from_form(options)
    choice, notices = Choice(), []
    share = {key: given.pop(key) for key in ("share", "model") if key in given}
    for part in (share, *({key: value} for key, value in given.items())):
        try:
            read = read_options(part)
        except GPUSpawnerError as error:
            notices.append(f"The link cannot be followed in full. {error.message}")
            continue
        choice = replace(choice, **{name: new for name in _PARTS if (new := getattr(read, name)) is not None})
    if choice.share is not None and not choice.share.cards:
        choice = replace(choice, burst=None, card=None)
    return choice, notices[:5]


def invalid(field: str, given: Any, allowed: str, what: str | None = None) -> InvalidInput:
    """The error that names `field`, what was given and what is allowed."""
    shown = shorten(field)
    given_text = "" if what else f" {shorten(given)!r} is not allowed"
    message = f"{shown}:{f' {what}' if what else given_text}. Allowed: {allowed}."
    return InvalidInput(message, field=shown, given=given, allowed=allowed)
