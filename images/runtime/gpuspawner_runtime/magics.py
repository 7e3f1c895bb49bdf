"""`%ckpt`, `%cost` and `%%gpu`, by `%load_ext gpuspawner_runtime`.

`%gpu` without a second sign is the Lab extension's, and stays: a line's and a cell's magics are told apart by IPython.
Every problem is one line; nobody is shown a traceback for a wrong word.
"""

from __future__ import annotations

import ast
import re
import shlex
from datetime import UTC, datetime
from types import CodeType
from typing import Any

from gpuspawner_runtime import cost, runs, tracebacks
from gpuspawner_runtime.errors import RuntimeFault
from gpuspawner_runtime.priority import LEVELS, priority
from gpuspawner_runtime.table import Table

CKPT_HELP = """\
%ckpt ls [RUN]              the checkpoints of one run, or of all; the same as %ckpt
%ckpt restore NAME [RUN]    let the run go back to a checkpoint, at its next step
%ckpt pin NAME [RUN]        keep a checkpoint when older ones are removed; unpin takes that back
%ckpt help                  this text

Without RUN the run that was written last and has such a checkpoint is meant."""
COST_HELP = """\
%cost         what this session costs for an hour and has cost so far; unknown without a hub
%cost help    this text"""
GPU_HELP = """\
%%gpu --priority low    what this cell runs may be stopped first when others need the card
%%gpu help              this text

low, normal or high. The mark stands in the state files of the cell's runs and in GPUSPAWNER_PRIORITY for processes
that it starts. %gpu, with one sign, shows and resizes the share."""
_CKPT = ("help", "ls", "pin", "restore", "unpin")


def ckpt(line: str) -> Table | None:
    """Do what the line behind `%ckpt` says."""
    words = line[:300].split()
    command = words[0] if words else "ls"
    try:
        if command == "help":
            print(CKPT_HELP)
        elif command == "ls" and len(words) <= 2:
            return _checkpoints(words[1] if len(words) == 2 else None)
        elif command in runs.ACTIONS and len(words) in (2, 3):
            run = runs.request(command, words[1], words[2] if len(words) == 3 else None)
            when = "at its next step" if run.status == "running" else "when it goes on: it does not run now"
            print(f"%ckpt: run {run.name} is asked to {command} {words[1]}; it does so {when}.")
        elif command in runs.ACTIONS:
            print(f"%ckpt: {command} takes the name of a checkpoint, and then perhaps that of its run.")
        else:
            print(f"%ckpt: {line.strip()[:60]!r} is not known here: give ls, restore, pin, unpin or help.")
    except RuntimeFault as fault:
        print(f"%ckpt: {fault.message}")
    return None


def _checkpoints(run: str | None) -> Table:
    found = [each for each in runs.known() if run is None or each.name == run]
    if run is not None and not found:
        raise RuntimeFault(f"There is no run {run[:60]!r}.", code="not_found", field="run", given=run)
    rows = [
        (
            each.name,
            one.name,
            "unknown" if one.step is None else f"{one.step:,}",
            "unknown" if one.bytes is None else f"{one.bytes / 2**20:,.1f} MiB",
            "unknown" if one.saved is None else one.saved.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S"),
            {True: "yes", False: "NO", None: "unknown"}[one.verified],
            "pinned" if one.pinned else "",
        )
        for each in found
        for one in each.checkpoints
    ]
    title = "Checkpoints (times in UTC)" if rows else "There are no checkpoints yet."
    return Table(title, ("run", "name", "step", "size", "saved", "verified", ""), tuple(rows), frozenset({2, 3}))


def cost_so_far(line: str) -> Table | None:
    """Do what the line behind `%cost` says."""
    words = line[:300].split()
    if words == ["help"]:
        print(COST_HELP)
    elif words:
        print(f"%cost: {line.strip()[:60]!r} is not known here: give nothing, or help.")
    elif not cost.configured():
        print("%cost: unknown: this process is in no session of a hub.")
    else:
        return _cost()
    return None


def _cost() -> Table | None:
    session = cost.session()
    if session is None:
        print("%cost: unknown: the GPU service does not answer.")
        return None
    currency = str(session.get("currency") or "")
    created = _time(session.get("created"))
    paid = None if created is None else cost.between(created, datetime.now(UTC))
    price = session.get("price_per_hour")
    rows = (
        ("price now", "unknown" if price is None else f"{price} {currency} per hour"),
        ("so far", "unknown" if paid is None else str(paid)),
        ("card-hours", "unknown" if paid is None else f"{float(paid.card_hours):.4g}"),
        ("by", "unknown" if paid is None else paid.method),
    )
    return Table(f"This session, share {session.get('share') or 'unknown'}", ("", ""), rows)


def _time(value: Any) -> datetime | None:
    try:
        read = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _level(line: str) -> str:
    """The priority that `%%gpu`'s line asks for. Raises RuntimeFault."""
    try:
        words = shlex.split(line[:300])
    except ValueError:
        words = [line]
    if len(words) == 1 and words[0].startswith("--priority="):
        words = words[0].split("=", 1)
    if len(words) != 2 or words[0] != "--priority" or words[1] not in LEVELS:
        allowed = ", ".join(f"--priority {level}" for level in LEVELS)
        raise RuntimeFault(f"{line.strip()[:60]!r} is not known here: give {allowed} or help.", field="line")
    return words[1]


def run_marked(shell: Any, line: str, cell: str) -> Any:
    """Run a cell with a priority; its value, its error and its names are as if it ran by itself."""
    if line.strip() == "help":
        print(GPU_HELP)
        return None
    try:
        level = _level(line)
    except RuntimeFault as fault:
        print(f"%%gpu: {fault.message} The cell did not run.")
        return None
    body, last = _compiled(shell, cell)
    with priority(level):
        # Errors pass through, so that "run all" stops here as at any other cell.
        exec(body, shell.user_ns)
        return None if last is None else eval(last, shell.user_ns)


def _compiled(shell: Any, cell: str) -> tuple[CodeType, CodeType | None]:
    """A cell as statements, and as an expression what it ends with, unless a semicolon says that it is not shown."""
    text = shell.transform_cell(cell)
    name = shell.compile.cache(text)
    tree = shell.compile.ast_parse(text, name)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not text.rstrip().endswith(";"):
        last = shell.compile(ast.Expression(tree.body.pop().value), name, "eval")
    return shell.compile(tree, name, "exec"), last


def complete(text: str) -> list[str]:
    """Words that may come where a line that begins with one of our magics ends now."""
    name, _, rest = text.lstrip().partition(" ")
    words = rest.split() + ([""] if not rest or rest[-1:].isspace() else [])
    choices: tuple[str, ...] = ()
    if name == "%ckpt" and len(words) == 1:
        choices = _CKPT
    elif name == "%ckpt" and len(words) == 2 and words[0] in runs.ACTIONS:
        choices = tuple(dict.fromkeys(one.name for run in runs.known() for one in run.checkpoints))
    elif name == "%ckpt" and (len(words), words[0]) in ((2, "ls"), (3, "restore"), (3, "pin"), (3, "unpin")):
        choices = tuple(run.name for run in runs.known())
    elif name == "%cost" and len(words) == 1:
        choices = ("help",)
    elif name == "%%gpu" and len(words) == 1:
        choices = ("--priority", "help")
    elif name == "%%gpu" and len(words) == 2 and words[0] == "--priority":
        choices = LEVELS
    return [choice for choice in choices if choice.startswith(words[-1])]


def register(shell: Any) -> None:
    """Make the magics known, and free what failed cells hold. Loading twice is loading once."""
    shell.register_magic_function(_documented(ckpt, CKPT_HELP), "line", "ckpt")
    shell.register_magic_function(_documented(cost_so_far, COST_HELP), "line", "cost")

    def gpu(line: str, cell: str) -> Any:
        return run_marked(shell, line, cell)

    shell.register_magic_function(_documented(gpu, GPU_HELP), "cell", "gpu")
    _register_matcher(shell)
    _register_hook(shell)


def _documented(function: Any, text: str) -> Any:
    function.__doc__ = text
    return function


def _register_hook(shell: Any) -> None:
    for known in list(shell.events.callbacks["post_run_cell"]):
        if getattr(known, "__name__", "") == "free_after_failed_cell":
            shell.events.unregister("post_run_cell", known)

    def free_after_failed_cell(result: Any) -> None:
        error = result.error_in_exec
        freed = tracebacks.free_after(error, shell.user_ns)
        if freed:
            print(
                f"{freed / 2**20:,.0f} MiB of tensors that the traceback held are free again "
                f"(%debug shows the lines without values; {tracebacks.VARIABLE}=1 keeps them)."
            )

    shell.events.register("post_run_cell", free_after_failed_cell)


def _register_matcher(shell: Any) -> None:
    from IPython.core.completer import SimpleCompletion, context_matcher

    ours = re.compile(r"\s*(%ckpt|%cost|%%gpu)\s")

    @context_matcher(identifier="gpuspawner_runtime.magics")  # type: ignore[untyped-decorator, unused-ignore]
    def matcher(context: Any) -> Any:
        before = context.text_until_cursor
        if ours.match(before) is None:
            return {"completions": [], "suppress": False}
        written = "" if before[-1:].isspace() else before.split()[-1]
        completions = [SimpleCompletion(text=word, type="magic") for word in complete(before)]
        return {"completions": completions, "suppress": True, "matched_fragment": written, "ordered": True}

    completer = getattr(shell, "Completer", None)
    if completer is None:
        return
    others = [
        each
        for each in completer.custom_matchers
        if getattr(each, "matcher_identifier", "") != matcher.matcher_identifier
    ]
    completer.custom_matchers = [*others, matcher]
