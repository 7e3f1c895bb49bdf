"""Sentences about the service's failures, shared by the server extension and the magic."""

from __future__ import annotations

from typing import Any

UNREACHABLE = "The GPU service of this hub cannot be reached. Your share and your kernels are kept; try again shortly."
NO_SESSION = "This server was started without a GPU share; start it again from the hub to choose one."
NO_CARD = (
    "This session runs without a card, as chosen at its start: programs compute on the CPU. "
    "For a share of a card, stop the server and start it again from the hub."
)


def refusal_sentence(status: int) -> str:
    """A sentence for an HTTP status that came without one."""
    return {
        401: "The GPU service does not accept this server's token: stop and start the server.",
        403: "This server's token may not do that at the GPU service.",
        404: "The GPU service does not know this session: stop and start the server.",
    }.get(status, f"The GPU service refused the request (status {status}).")


def server_sentence(body: Any) -> str:
    """The sentence in a 5xx answer of the service, or the one for a service that is not there.

    Only an answer with a code of the service's own is trusted to be for people: proxies put other text there.
    """
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and error.get("code") == "unavailable" and isinstance(error.get("message"), str):
        return str(error["message"])
    return UNREACHABLE
