"""Sentences about the service's failures, shared by the server extension and the magic."""

from __future__ import annotations

UNREACHABLE = "The GPU service of this hub cannot be reached. Your share and your kernels are kept; try again shortly."


def refusal_sentence(status: int) -> str:
    """A sentence for an HTTP status that came without one."""
    return {
        401: "The GPU service does not accept this server's token: stop and start the server.",
        403: "This server's token may not do that at the GPU service.",
        404: "The GPU service does not know this session: stop and start the server.",
    }.get(status, f"The GPU service refused the request (status {status}).")
