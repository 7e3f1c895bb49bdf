"""KubeSpawner's profiles as the environments that people choose from, and the options of a profile. Pure.

KubeSpawner takes options as they come; what is not offered would be a failure in the middle of a start, or ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuspawner.spawner.environments import Environment
from gpuspawner.spawner.options import KEYS, Choice, invalid, options_from_form, read_options

Profile = Mapping[str, Any]

UNLISTED = "--unlisted-choice"
_FIELD = "profile-option-"
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class ProfileOption:
    """One option of a profile, for the form: `field` is what the form calls it, `choices` are (value, title). `free`:
    what a text of one's own is called, None where there can be none."""

    name: str
    field: str
    title: str
    choices: tuple[tuple[str, str], ...]
    default: str | None
    free: str | None


def environments(profiles: Sequence[Profile]) -> list[Environment]:
    """The profiles as the form shows environments, the default first."""
    found = [
        Environment(
            name=profile["slug"],
            title=str(profile["display_name"]),
            command=(),
            description=str(profile.get("description") or ""),
            options=tuple(profile_options(profile)),
        )
        for profile in profiles
    ]
    default = next((at for at, profile in enumerate(profiles) if profile.get("default")), 0)
    return [*found[default : default + 1], *found[:default], *found[default + 1 :]]


def profile_options(profile: Profile) -> list[ProfileOption]:
    """What can be chosen within a profile."""
    found = []
    for key, option in (profile.get("profile_options") or {}).items():
        choices = option.get("choices") or {}
        free = option.get("unlisted_choice") or {}
        found.append(
            ProfileOption(
                name=str(key),
                field=f"{_FIELD}{profile['slug']}--{key}",
                title=str(option.get("display_name") or key),
                choices=tuple((value, str(choice.get("display_name") or value)) for value, choice in choices.items()),
                default=next((value for value, choice in choices.items() if choice.get("default")), None),
                free=str(free.get("display_name") or "Other") if free.get("enabled") else None,
            )
        )
    return found


def from_form(form: Mapping[str, list[Any]]) -> dict[str, Any]:
    """user_options from the submitted form, those of the chosen profile included."""
    own = {key: values for key, values in form.items() if not key.startswith(_FIELD)}
    options = options_from_form(own)
    slug = options.get("environment") or options.get("profile")
    if slug is not None:
        start = f"{_FIELD}{slug}--"
        for key, values in form.items():
            if key.startswith(start) and values and values[-1] != "":
                options[key.removeprefix(start)] = values[-1]
    return options


def read_choice(options: Any, profiles: Sequence[Profile]) -> Choice:
    """The checked choice in `options`: a share, and one of the profiles with its own options. Raises InvalidInput.

    `environment` and `profile` are two words for the same: ours and KubeSpawner's.
    """
    if not isinstance(options, dict):
        return read_options(options)
    slug = options.get("environment", options.get("profile"))
    if "environment" in options and options.get("profile") not in (None, slug):
        raise invalid("profile", options["profile"], f"{slug!r}, which environment names, or none")
    ours = {key: value for key, value in options.items() if key in KEYS and key not in ("profile", "environment")}
    theirs = {key: value for key, value in options.items() if key not in KEYS}
    profile = _profile(slug, profiles)
    choice = read_options(ours if profile is not None else {**ours, **theirs})
    if profile is None:
        return choice
    extra = tuple(sorted((str(key), _option(str(key), value, profile)) for key, value in theirs.items()))
    return replace(choice, environment=profile["slug"] if slug is not None else None, extra=extra)


def stored(choice: Choice, profiles: Sequence[Profile]) -> dict[str, Any]:
    """The choice as KubeSpawner reads it: with `profile`, and each option under its own name."""
    options = {key: value for key, value in choice.options.items() if key != "environment"}
    if choice.environment is not None and profiles:
        options["profile"] = choice.environment
    return options | dict(choice.extra)


def recalled(options: Mapping[str, Any]) -> Choice:
    """A choice that was stored, without a look at what is offered now. Raises InvalidInput."""
    ours = {key: value for key, value in options.items() if key in KEYS and key not in ("profile", "environment")}
    slug = options.get("environment")
    extra = tuple(sorted((key, str(value)) for key, value in options.items() if key not in KEYS))
    return replace(read_options(ours), environment=slug if isinstance(slug, str) else None, extra=extra)


def _profile(slug: Any, profiles: Sequence[Profile]) -> Profile | None:
    if slug is None:
        return next((profile for profile in profiles if profile.get("default")), None)
    for profile in profiles:
        if profile["slug"] == slug:
            return profile
    allowed = ", ".join(profile["slug"] for profile in profiles) or "none: there are no environments to choose from"
    raise invalid("environment", slug, allowed)


def _option(key: str, value: Any, profile: Profile) -> str:
    known = profile.get("profile_options") or {}
    option = known.get(key.removesuffix(UNLISTED))
    if option is None:
        allowed = "the keys " + ", ".join([*KEYS, *known])
        raise invalid(key, value, allowed, what="unknown key")
    if type(value) is not str or len(value) > _LONGEST or not value.isprintable():
        raise invalid(key, value, f"one line of at most {_LONGEST} characters")
    if key.endswith(UNLISTED):
        free = option.get("unlisted_choice") or {}
        pattern = free.get("validation_regex")
        if not free.get("enabled"):
            raise invalid(key, value, ", ".join(option.get("choices") or {}))
        # KubeSpawner matches the pattern as a prefix; a value that goes on otherwise is not what was allowed
        if pattern and not re.fullmatch(pattern, value):
            raise invalid(key, value, str(free.get("validation_message") or f"text that matches {pattern}"))
    elif value not in (option.get("choices") or {}):
        raise invalid(key, value, ", ".join(option.get("choices") or {}) or f"{key}{UNLISTED} alone")
    return value
