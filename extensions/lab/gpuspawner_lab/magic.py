"""`%gpu`: the share of this session, from inside a kernel.

Loaded by default in every kernel, so what costs time (NVML, HTTP) is imported on first use.
Every problem is one line; nobody is shown a traceback for a wrong word or a busy card.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .service_words import NO_CARD
from .shares import ALLOWED, SHARES, ShareInputError, check_share, eighths, gib, shown, without_card
from .shrink import free_caches
from .shrink_channel import answer_requests

if TYPE_CHECKING:
    from .nvml import CardReading, NVMLReader
    from .report import Status
    from .table import Table

HELP = f"""\
%gpu                 what this session holds and uses; the same as %gpu status
%gpu resize SHARE    change the share to {ALLOWED}; kernels and variables stay
%gpu processes       which process and notebook holds how much card memory
%gpu history         what this session held, when and by whom, and its cost so far
%gpu help            this text

from gpuspawner_lab import GPUShare; GPUShare() shows the share live, with a resize.
gpuspawner_lab.on_shrink(function) registers a function that frees caches before a shrink."""

COMMANDS = ("help", "history", "processes", "resize", "status")
_LONGEST_LINE = 200
_reader: NVMLReader | None = None


def run(line: str) -> Status | Table | None:
    """Do what the line says. Prints one line for an action or a refusal; returns what is to be shown."""
    from .ask import Refusal

    # A word longer than any command is not split up: it may be megabytes long.
    words = line[:_LONGEST_LINE].split()
    command = words[0] if words else "status"
    alone = len(words) <= 1 and len(line) <= _LONGEST_LINE
    try:
        if command == "status" and alone:
            return status()
        if command == "processes" and alone:
            return processes()
        if command == "history" and alone:
            return history()
        if command == "help" and alone:
            print(HELP)
        elif command == "resize" and len(words) == 2 and len(line) <= _LONGEST_LINE:
            print(resize(words[1]))
        elif command == "resize":
            given = line.strip()[len("resize") :].strip()
            problem = f"{shown(given)} is not a share" if given else "resize needs a share"
            print(f"%gpu: {problem}: give {ALLOWED}.")
        elif command in COMMANDS:
            print(f"%gpu: {command} takes nothing after it, not {shown(line.strip()[len(command) :].strip())}.")
        else:
            allowed = "nothing, status, resize SHARE, processes, history or help"
            print(f"%gpu: {shown(line.strip())} is not known here: give {allowed}.")
    except Refusal as refusal:
        print(f"%gpu: {refusal}")
    return None


def status() -> Status:
    """What this session holds and uses. Raises `Refusal` in a server without a share."""
    from .ask import Refusal, get_session, session_id
    from .report import Status

    notes = []
    session = None
    try:
        session = get_session()
    except Refusal as refusal:
        if session_id() is None:
            raise
        notes.append(str(refusal))
    if without_card(session):
        return Status(session)
    cards, reason = _cards(session)
    return Status(session, tuple(cards), tuple(notes + ([reason] if reason else [])))


def resize(share: str) -> str:
    """Ask for another share; returns the line that says what came of it. Raises `Refusal`."""
    from .ask import Refusal, get_session, patch_session

    try:
        share = check_share(share)
    except ShareInputError as error:
        raise Refusal(str(error)) from None
    before = get_session()
    if without_card(before):
        raise Refusal(NO_CARD)
    notes = []
    # Caches are freed first, since the service compares with what the driver says is in use.
    if eighths(share) < int(before.get("eighths") or 0):
        notes = free_caches()
    return "\n".join([resize_line(before, patch_session(share=share)), *notes])


def resize_line(before: dict[str, Any], answer: dict[str, Any]) -> str:
    """What came of a resize, from the session before and the service's answer."""
    after = answer["session"]
    if before["share"] == after["share"]:
        line = f"The share is {after['share']} already: {gib(after['memory_bytes'])} GiB"
    else:
        line = (
            f"GPU {before['share']} → {after['share']}: "
            f"memory {gib(before['memory_bytes'])} → {gib(after['memory_bytes'])} GiB"
        )
        if isinstance(answer.get("applied_ms"), (int, float)):
            line += f" in {answer['applied_ms']:.1f} ms"
    if after.get("price_per_hour") is not None:
        line += f", {after['price_per_hour']} {after.get('currency', '')} per hour"
    return line.strip()


def processes() -> Table:
    """Which process holds how much card memory. Raises `Refusal` where the driver cannot say."""
    from .ask import Refusal, get_session
    from .processes import table

    session = get_session()
    if without_card(session):
        raise Refusal(NO_CARD)
    cards, reason = _cards(session, processes=True)
    if reason:
        raise Refusal(reason)
    known = [card.processes for card in cards if card.processes is not None]
    if len(known) < len(cards):
        raise Refusal("The driver does not say which processes hold memory.")
    return table(process for held in known for process in held)


def history() -> Table:
    """The session's resizes and cost. Raises `Refusal` in a server without a share."""
    from .ask import get_events
    from .history import MOST_ROWS
    from .history import history as made

    return made(get_events(MOST_ROWS))


def _cards(session: dict[str, Any] | None, processes: bool = False) -> tuple[list[CardReading], str | None]:
    from .nvml import NVMLReader, NVMLUnavailable

    global _reader
    if _reader is None:
        _reader = NVMLReader()
    try:
        return _reader.read([card["uuid"] for card in (session or {}).get("cards", [])], processes=processes), None
    except NVMLUnavailable as error:
        return [], str(error)


def complete(text: str) -> list[str]:
    """The words that may come where a line that begins with `%gpu` ends now."""
    words = text.lstrip("% \t").split()[1:] + ([""] if text[-1:].isspace() else [])
    choices: tuple[str, ...] = ()
    if len(words) == 1:
        choices = COMMANDS
    elif len(words) == 2 and words[0] == "resize":
        choices = SHARES
    return [choice for choice in choices if choice.startswith(words[-1])]


def load_ipython_extension(shell: Any) -> None:
    """Register `%gpu` (`%load_ext gpuspawner_lab.magic`); done by default in every kernel."""
    shell.register_magic_function(run, magic_kind="line", magic_name="gpu")
    _register_matcher(shell)
    answer_requests(shell)


def _register_matcher(shell: Any) -> None:
    """Let Tab show subcommands and shares, and nothing else, behind `%gpu`."""
    import re

    from IPython.core.completer import SimpleCompletion, context_matcher

    line = re.compile(r"\s*(%?)gpu\s")

    @context_matcher(identifier="gpuspawner_lab.magic")  # type: ignore[untyped-decorator, unused-ignore]
    def matcher(context: Any) -> Any:
        before = context.text_until_cursor
        ours = line.match(before)
        found = complete(before) if ours else []
        # Without the sign it may be a variable called gpu, whose completions are left alone.
        if ours is None or not (found or ours[1]):
            return {"completions": [], "suppress": False}
        written = "" if before[-1:].isspace() else before.split()[-1]
        completions = [SimpleCompletion(text=word, type="magic") for word in found]
        return {"completions": completions, "suppress": True, "matched_fragment": written, "ordered": True}

    completer = getattr(shell, "Completer", None)
    if completer is None:
        return
    # Loading twice must not show everything twice.
    known = [
        each
        for each in completer.custom_matchers
        if getattr(each, "matcher_identifier", "") != matcher.matcher_identifier
    ]
    completer.custom_matchers = [*known, matcher]
