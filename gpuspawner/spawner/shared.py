"""What the spawners of one machine and of a cluster share: they ask the service for a session, show the same form, tell
each step of a start, and give the session back whatever happens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jupyterhub
from jupyterhub.handlers.pages import SpawnHandler
from sqlalchemy import inspect
from traitlets import Bool, Instance, Integer, Unicode, default, observe, validate
from traitlets.config import LoggingConfigurable

from gpuspawner.errors import GPUSpawnerError
from gpuspawner.share import GPUShare
from gpuspawner.spawner import form
from gpuspawner.spawner.client import Json, ServiceClient
from gpuspawner.spawner.environments import Environment
from gpuspawner.spawner.errors import Refused, log_refusals_in_a_line
from gpuspawner.spawner.obtain import to_the_end
from gpuspawner.spawner.options import Choice, invalid, options_from_form, read_link
from gpuspawner.spawner.steps import Failure, Steps

State = dict[str, Any]
T = TypeVar("T")
# a start begins within milliseconds of its form
_CLAIM = 1.0


class SharedSpawner(LoggingConfigurable):  # type: ignore[misc, unused-ignore]
    """Comes before JupyterHub's or KubeSpawner's own class among a spawner's bases."""

    if TYPE_CHECKING:  # of JupyterHub's Spawner, which has no types
        _log_name: Any
        get_state: Any
        handler: Any
        log: Any
        name: Any
        orm_spawner: Any
        user: Any
        user_options: Any
        api_token: Any
        http_timeout: Any
        start_timeout: Any

    service_url = Unicode(
        "http://127.0.0.1:8003/services/gpuspawner/api/v1",
        help="Address of the gpuspawner service's REST API.",
    ).tag(config=True)
    service_token_file = Unicode(help="File that holds the service's token. Readable for the hub's user only.").tag(
        config=True
    )
    service_socket = Unicode(
        "",
        help="The service's own socket file, in a folder that sessions do not see. Empty: its port. A session that "
        "took the port while the service is down would be sent the token.",
    ).tag(config=True)
    default_share = Unicode(
        "1/4",
        help="The share of a start that asks for none. Where it is not free, the first one that is.",
    ).tag(config=True)
    longest_wait = Integer(
        86400,
        min=0,
        help="Seconds for which a start may wait in the queue for its share, before start_timeout begins. 0: what is "
        "taken is refused.",
    ).tag(config=True)
    offer_no_card = Bool(True, help="Whether a server can be started without a card.").tag(config=True)

    session_id = Unicode("", help="The GPU session of the running server.")
    wanted = Instance(Choice, (), help="What this start asks for.")
    choice = Instance(Choice, (), help="The last choice that was granted. Kept when the server stops.")

    @validate("default_share")
    def _valid_default_share(self, proposal: Any) -> str:
        return str(GPUShare.parse(proposal["value"], "default_share"))

    @default("options_form")
    def _default_options_form(self) -> Callable[[Any], Any]:
        return form.options_form

    @default("options_from_form")
    def _default_options_from_form(self) -> Callable[[Any], Any]:
        return form.options_from_form

    @default("apply_user_options")
    def _default_apply_user_options(self) -> Callable[[Any, Any], Any]:
        return SharedSpawner.accept_options

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        log_refusals_in_a_line()
        self.steps = Steps()
        self.failure: Failure | None = None
        self.link = form.Link()
        self._claimed_until = 0.0
        self._may_hold = True  # whether the service may still hold something for this server

    @property
    def service(self) -> ServiceClient:
        """The client of the service."""
        socket = Path(self.service_socket) if self.service_socket else None
        return ServiceClient(self.service_url, Path(self.service_token_file), socket)

    # -- options ---------------------------------------------------------------------------------------

    async def offered_environments(self) -> list[Environment]:
        """What can be started, the default first."""
        raise NotImplementedError

    def read_form(self, posted: dict[str, list[Any]]) -> dict[str, Any]:
        """user_options from the submitted form."""
        return options_from_form(posted)

    async def read_choice(self, user_options: Any) -> Choice:
        """The checked choice in `user_options`. Raises GPUSpawnerError."""
        raise NotImplementedError

    def claim_start(self) -> None:
        """The form was sent. JupyterHub answers 500 where a second one arrives before it has begun with the first.

        Raises Refused (409) for that one."""
        now = time.monotonic()
        if now < self._claimed_until:
            raise Refused(409, "This server is being started already, by another click or in another tab.")
        self._claimed_until = now + _CLAIM

    async def accept_options(self, user_options: Any) -> None:
        """JupyterHub's `apply_user_options`: check the options before anything starts.

        JupyterHub has stored them already; refused ones are taken back, so that the next start without
        options is not refused for them too. The body {} asks for the default share, as it does in
        JupyterHub 5; from 6 on JupyterHub takes it for no body at all, which asks for what was started last.
        """
        self._claimed_until = 0.0
        try:
            wanted = await self.read_choice({} if _empty_object(self.handler) else user_options)
            if wanted.share is not None and not wanted.share.cards and not self.offer_no_card:
                raise invalid("share", wanted.share.amount, "a share of a card")
        except GPUSpawnerError as error:
            self._remember(self.choice.options)
            refused = Refused.from_error(error)
            self._not_counted(refused)
            raise refused from error
        self.wanted = wanted

    @observe("handler")
    def _read_link(self, change: Any) -> None:
        """A link to the form chooses beforehand. JupyterHub would start at once what its query asks for; but a link
        comes from anywhere, and a start costs money, so a person has to press the button."""
        if isinstance(change["new"], SpawnHandler) and change["new"].request.method == "GET":
            query = change["new"].request.query_arguments
            self.link = form.Link(*read_link(query), cancelled="_cancelled" in query)
            query.clear()

    def _remember(self, options: State) -> None:
        self.user_options = options
        if self.orm_spawner is not None:
            self.orm_spawner.user_options = options
            self._save()

    def _save(self) -> None:
        """Store the state now. Where the hub is killed a moment later, it finds what it started."""
        if self.orm_spawner is not None and (db := inspect(self.orm_spawner).session) is not None:
            self.orm_spawner.state = self.get_state()
            db.commit()

    # -- a start that may have to wait -----------------------------------------------------------------

    def _patient(self, start: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """`start` as JupyterHub takes it. It reads `start_timeout` once, as soon as it has this; the time in the queue
        goes on top of it. What reads it later, such as KubeSpawner, finds what was configured."""
        if self._waits:
            own = self.start_timeout
            self.start_timeout = own + self.longest_wait
            asyncio.get_running_loop().call_soon(setattr, self, "start_timeout", own)
        return asyncio.ensure_future(start)

    @property
    def _waits(self) -> bool:
        return bool(self.wanted.wait) and self.longest_wait > 0

    def _own_time(self) -> asyncio.Timeout:
        """What a start may take from when it has its share; where it did not wait for that, JupyterHub sees to it."""
        return asyncio.timeout(self.start_timeout if self._waits else None)

    # -- a start that fails ----------------------------------------------------------------------------

    def _failure(self, error: BaseException) -> Failure:
        """What the failure page says of `error`."""
        held = bool(self.session_id)
        code = error.code if isinstance(error, Refused) else ""
        if isinstance(error, Refused):
            happened = error.jupyterhub_message
        elif isinstance(error, asyncio.CancelledError | TimeoutError):
            happened = f"The start was stopped after {self.steps.seconds:.0f} seconds, before the server was ready."
        else:
            happened = f"The hub could not start the server ({type(error).__name__})."
        return form.failure(happened, code, held, self._log_tail())

    def _not_counted(self, error: BaseException) -> None:
        """JupyterHub 5 counts every failed start and exits after a few; from 6 on it counts no refusal (below 500).
        What it is about to add for one is taken off here."""
        counts_all = jupyterhub.version_info[0] < 6
        if counts_all and self.handler is not None and isinstance(error, Refused) and error.status_code < 500:
            settings = self.handler.settings
            settings["failure_count"] = settings.get("failure_count", 0) - 1

    def _answer_cancelled(self, happened: str) -> None:
        """Answer the request that asked for this start where it still waits: JupyterHub would say 500."""
        if self.handler is not None and not self.handler._finished:
            self.handler.send_error(409, exc_info=(Refused, Refused(409, happened, code="cancelled"), None))

    def _never_answered(self, what: str) -> None:
        self.failure = form.failure(what, "silent", True, self._log_tail())

    def _log_tail(self) -> tuple[str, ...]:
        """The last lines that the server wrote, where they can be had."""
        return ()

    # -- life ------------------------------------------------------------------------------------------

    async def _release(self) -> None:
        """End what the service holds for this server, by its id or, where the hub was killed before it knew
        that, by its name. A failure is logged: the service's own watch over sessions is the safety net."""
        if not self._may_hold:
            return
        session, self.session_id = self.session_id, ""
        try:
            if session:
                await to_the_end(self.service.end(session))
            else:
                await to_the_end(self.service.end_all(self.user.name, self.name))
            self._may_hold = False
        except Refused as refused:
            self.log.warning("Could not end the session of %s: %s", self._log_name, refused)

    async def progress(self) -> AsyncIterator[Json]:
        """The steps of the start, each as it happens."""
        async for step in self.steps:
            yield step


def _empty_object(handler: Any) -> bool:
    """Whether the request that starts the server is one to the API whose body is {}."""
    request = getattr(handler, "request", None)
    return request is not None and request.method == "POST" and b"".join(request.body.split()) == b"{}"


def card_names(session: Json) -> str:
    """The cards of a session for people."""
    return " and ".join(f"card {card['index']}, {card['name']}" for card in session["cards"])
