"""The reference page of the policy file, from its schema: `python -m gpuspawner.service.policy.reference`."""

from __future__ import annotations

from gpuspawner.service.policy.schema import (
    Allow,
    Budget,
    Grid,
    GridSource,
    Labelled,
    NodeCost,
    Over,
    ParkingClass,
    Part,
    PolicyFile,
    Prices,
    Project,
    QueueClass,
    Rule,
)

_HEAD = """\
# The policy file

One YAML file says who may have what, what it costs, and how much of it there is for whom. It is `policy.yaml` in
the state folder, or what `GPUSPAWNER_POLICY` names. Without it everybody may start everything that the scopes allow.

This page is made from the schema: `python -m gpuspawner.service.policy.reference > docs/reference/policy.md`.

- The service reads it again when it changes. A file that is broken or gone leaves the last good one in force; the log,
  the form of administrators and `GET /policy` say so. Anchors and a key that stands twice are refused.
- With `rules`, a start must be allowed in full by one rule that is about its user. Several rules add up. A smaller
  share than what a session holds is never against the policy, and nothing that runs is ended by it.
- Rules decide for whoever the session belongs to, whoever asks: the form, the API, `%gpu` and an administrator alike.
  The rights are those of whoever asks; administrators (`custom:gpuspawner:admin`) have all of them.
- A rule with `over` gives its people rights on the sessions of others, with a token that may do the same to all of
  their own; a server's token is not enough. To open other people's servers is JupyterHub's own scope `access:servers`.
- Groups and roles are JupyterHub's, asked of the hub and believed for ten seconds.
- Money is text such as "3.20", or a whole number. Dates are the first moment of the day, UTC; times need their offset.

`gpuspawner policy check FILE` reads a file and says what is wrong with it; `gpuspawner policy explain USER` says what
the policy in force means for somebody.
"""

_PARTS: tuple[tuple[str, type[Part]], ...] = (
    ("The file", PolicyFile),
    ("rules", Rule),
    ("rules: allow", Allow),
    ("rules: over", Over),
    ("cards", Labelled),
    ("budgets", Budget),
    ("projects", Project),
    ("prices", Prices),
    ("costs", NodeCost),
    ("grid", Grid),
    ("grid_live", GridSource),
    ("queue", QueueClass),
    ("parking", ParkingClass),
)


def page() -> str:
    """The page as Markdown."""
    lines = [_HEAD]
    for title, part in _PARTS:
        lines += [
            f"## {title}",
            "",
            " ".join((part.__doc__ or "").split()),
            "",
            "| field | needed | what |",
            "|---|---|---|",
        ]
        for name, field in part.model_fields.items():
            what = field.description or (field.json_schema_extra or {}).get("description", "")  # type: ignore[union-attr]
            lines.append(f"| `{field.alias or name}` | {'yes' if field.is_required() else ''} | {what} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
