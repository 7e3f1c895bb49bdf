"""What a person may ask for when a server starts: `user_options`, checked before anything else happens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpuspawner.errors import InvalidInput, shorten
from gpuspawner.share import GPUShare

KEYS = ("share", "model", "profile")
_LONGEST_PROFILE = 200


@dataclass(frozen=True, slots=True)
class Choice:
    """A checked choice. `share` None is the default share, whatever model has it."""

    share: GPUShare | None = None

    @property
    def options(self) -> dict[str, str]:
        """The choice as JupyterHub stores it."""
        if self.share is None:
            return {}
        options = {"share": self.share.amount}
        if self.share.model:
            options["model"] = self.share.model
        return options


def read_options(options: Any) -> Choice:
    """The choice in `options`, which come from anywhere: the form, JupyterHub's API, its database.

    Raises InvalidInput (ShareError for a share), naming the field, what was given and what is allowed.
    `profile` is for people to read and says nothing here; the spawner writes it itself.
    """
    if not isinstance(options, dict):
        raise _invalid("user_options", options, "an object with the keys share and model")
    unknown = sorted(str(key) for key in options if key not in KEYS)
    if unknown:
        raise _invalid(unknown[0], options.get(unknown[0]), "the keys " + ", ".join(KEYS), what="unknown key")
    profile = options.get("profile")
    if profile is not None and (type(profile) is not str or len(profile) > _LONGEST_PROFILE):
        raise _invalid("profile", profile, f"text of at most {_LONGEST_PROFILE} characters")
    given, model = options.get("share"), options.get("model")
    if given is None:
        if model is not None:
            raise _invalid("model", model, "a model only together with a share")
        return Choice()
    share = GPUShare.parse(given)
    if model is None:
        return Choice(share)
    if share.model is not None and share.model != model:
        raise _invalid("model", model, f"{share.model!r}, the model that the share names, or none")
    return Choice(replace(share, model=model))


def options_from_form(form: dict[str, list[Any]]) -> dict[str, Any]:
    """user_options from the submitted form (lists of strings). JupyterHub's own fields, which start with an
    underscore, are left out; a field given twice stays a list, for `read_options` to refuse."""
    options: dict[str, Any] = {}
    for key, values in form.items():
        if key.startswith("_"):
            continue
        options[key] = values[0] if len(values) == 1 else values
    share = options.get("share")
    if isinstance(share, str) and ":" in share and "model" not in options:
        options["model"], _, options["share"] = share.rpartition(":")
    return options


def _invalid(field: str, given: Any, allowed: str, what: str | None = None) -> InvalidInput:
    shown = shorten(field)
    given_text = "" if what else f" {shorten(given)!r} is not allowed"
    message = f"{shown}:{f' {what}' if what else given_text}. Allowed: {allowed}."
    return InvalidInput(message, field=shown, given=given, allowed=allowed)
