"""`%gpu`: the share of this session, from inside a kernel.

Loaded by default in every kernel, so what costs time (NVML, HTTP) is imported on first use.
Every problem is one line; nobody is shown a traceback for a wrong word or a busy card.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .shares import ALLOWED, SHARES, ShareInputError, check_share, eighths, gib, shown
from .shrink import free_caches
from .shrink_channel import answer_requests

if TYPE_CHECKING:
    from .nvml import NVMLReader
    from .report import Status

HELP = f"""\
%gpu                 what this session holds and uses
%gpu resize SHARE    change the share to {ALLOWED}; kernels and variables stay
%gpu help            this text

gpuspawner_lab.on_shrink(function) registers a function that frees caches before a shrink."""

_COMMANDS = ("help", "resize", "status")
_TIMEOUT = 30.0
_reader: NVMLReader | None = None


class Refusal(Exception):
    """Something that cannot be done; the message is one line for the person at the keyboard."""

    def __init__(self, message: str, body: dict[str, Any] | None = None) -> None:
        self.body = body or {}
        super().__init__(" ".join(message.split()))


def run(line: str) -> Status | None:
    """Do what the line says. Prints one line for an action or a refusal; returns a status."""
    # A word longer than any command is not split up: it may be megabytes long.
    words = line[:200].split()
    command = words[0] if words else "status"
    try:
        if command == "status" and len(words) <= 1:
            return status()
        if command == "help":
            print(HELP)
        elif command == "resize" and len(words) == 2 and len(line) <= 200:
            print(resize(words[1]))
        elif command == "resize":
            given = line.strip()[len("resize") :].strip()
            problem = f"{shown(given)} is not a share" if given else "resize needs a share"
            print(f"%gpu: {problem}: give {ALLOWED}.")
        else:
            print(f"%gpu: {shown(line.strip())} is not known here: give nothing, resize SHARE or help.")
    except Refusal as refusal:
        print(f"%gpu: {refusal}")
    return None


def status() -> Status:
    """What this session holds and uses. Raises `Refusal` in a server without a share."""
    from .report import Status

    notes = []
    session = None
    try:
        session = _ask("GET")
    except Refusal as refusal:
        if not os.environ.get("GPUSPAWNER_SESSION"):
            raise
        notes.append(str(refusal))
    cards, reason = _cards(session)
    return Status(session, tuple(cards), tuple(notes + ([reason] if reason else [])))


def resize(share: str) -> str:
    """Ask for another share; returns the line that says what came of it. Raises `Refusal`."""
    try:
        share = check_share(share)
    except ShareInputError as error:
        raise Refusal(str(error)) from None
    before = _ask("GET")
    notes = []
    # Caches are freed first, since the service compares with what the driver says is in use.
    if eighths(share) < int(before.get("eighths") or 0):
        notes = free_caches()
    answer = _ask("PATCH", {"share": share})
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
    return "\n".join([line.strip(), *notes])


def _cards(session: dict[str, Any] | None) -> tuple[list[Any], str | None]:
    from .nvml import NVMLReader, NVMLUnavailable

    global _reader
    if _reader is None:
        _reader = NVMLReader()
    try:
        return _reader.read([card["uuid"] for card in (session or {}).get("cards", [])]), None
    except NVMLUnavailable as error:
        return [], str(error)


def _ask(method: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One question about this session to the service. Raises `Refusal` with its sentence."""
    import json
    import urllib.error
    import urllib.request

    url, session = os.environ.get("GPUSPAWNER_SERVICE_URL"), os.environ.get("GPUSPAWNER_SESSION")
    if not url or not session:
        raise Refusal("this server was started without a GPU share; start it again from the hub to choose one.")
    request = urllib.request.Request(
        f"{url.rstrip('/')}/sessions/{session}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {os.environ.get('JUPYTERHUB_API_TOKEN', '')}",
            "Content-Type": "application/json",
        },
    )
    # Without the environment's proxies and without redirects: the token goes to the service only.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _no_redirect())
    try:
        with opener.open(request, timeout=_TIMEOUT) as answer:
            parsed = json.load(answer)
    except urllib.error.HTTPError as error:
        raise _refusal(error.code, error.read()) from None
    except (OSError, ValueError) as error:
        from .service_words import UNREACHABLE

        raise Refusal(UNREACHABLE) from error
    if not isinstance(parsed, dict):
        raise Refusal("the GPU service gave an answer that cannot be read.")
    return parsed


def _no_redirect() -> Any:
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            """Leave the redirect to be reported as an error."""

    return NoRedirect()


def _refusal(status: int, raw: bytes) -> Refusal:
    import json

    from .service_words import refusal_sentence, server_sentence

    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    if status >= 500:
        return Refusal(server_sentence(body))
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return Refusal(error["message"], error)
    return Refusal(refusal_sentence(status))


def complete(line: str) -> list[str]:
    """What may follow in a line that begins with `%gpu`."""
    words = line.lstrip("% \t").split(" ")[1:]
    choices: tuple[str, ...]
    if len(words) <= 1:
        choices, start = _COMMANDS, words[0] if words else ""
    elif len(words) == 2 and words[0] == "resize":
        choices, start = SHARES, words[1]
    else:
        return []
    return [choice for choice in choices if choice.startswith(start)]


def load_ipython_extension(shell: Any) -> None:
    """Register `%gpu` (`%load_ext gpuspawner_lab.magic`); done by default in every kernel."""
    shell.register_magic_function(run, magic_kind="line", magic_name="gpu")
    shell.set_hook("complete_command", _completer, re_key=r"%?gpu\b")
    answer_requests(shell)


def _completer(_shell: Any, event: Any) -> list[str]:
    return complete(event.text_until_cursor)
