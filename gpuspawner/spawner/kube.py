"""GPUKubeSpawner: single-user servers as pods of a cluster, each with the claim of its GPU session."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from jupyterhub.utils import maybe_future
from kubernetes_asyncio.client import ApiException
from kubespawner import KubeSpawner
from traitlets import default

from gpuspawner import kubernetes_names as names
from gpuspawner.errors import GPUSpawnerError
from gpuspawner.spawner import profiles
from gpuspawner.spawner.client import Json
from gpuspawner.spawner.environments import Environment
from gpuspawner.spawner.errors import Refused
from gpuspawner.spawner.obtain import obtain_session, to_the_end
from gpuspawner.spawner.options import Choice
from gpuspawner.spawner.pods import session_variables, with_session
from gpuspawner.spawner.shared import SharedSpawner, State, card_names
from gpuspawner.spawner.steps import Steps

#: How often a start is placed, the first time included, before its user hears of it.
ATTEMPTS = 4
_LOOK = 0.1
_TOLD_WITHIN = 10.0
#: So long a pod may be made and not be seen yet, before somebody looks where it is.
_UNSEEN = 1.0
#: The scheduler's and the kubelet's events, and which part of the start they belong to.
_PARTS = {"Scheduled": "card", "Pulling": "environment", "Pulled": "environment", "Created": "server"}


class _PlaceAgain(Exception):
    """The node has refused the session's claim, or its pod cannot run there."""


class GPUKubeSpawner(SharedSpawner, KubeSpawner):  # type: ignore[misc, unused-ignore]
    """Starts a user's server as a pod with a share of a card.

    The service decides on the share and makes its claim; this class adds that to the pod which KubeSpawner makes. All
    settings of KubeSpawner work as they do there; its profiles are the environments of the form.
    """

    if TYPE_CHECKING:  # KubeSpawner's attributes, which have no types
        api: Any
        events: Any
        namespace: Any
        pod_name: Any
        pod_reflector: Any
        profile_list: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._session: Json = {}
        self._pod: Json = {}
        self._before_profile: dict[str, Any] = {}
        self._name_is_ours = False
        self._made_at: float | None = None  # when this start's pod was made

    @default("env_keep")
    def _default_env_keep(self) -> list[str]:
        return []

    # -- options ---------------------------------------------------------------------------------------

    async def _profiles(self) -> list[Any]:
        """KubeSpawner's profiles as they are for this user, with the slugs and defaults that it gives them."""
        given = self._sorted_dict_values(self.profile_list)
        if callable(given):
            given = await maybe_future(given(self))
        found: list[Any] = self._get_initialized_profile_list(given or [])
        return found

    async def offered_environments(self) -> list[Environment]:
        """The profiles, the default first."""
        return profiles.environments(await self._profiles())

    def read_form(self, posted: dict[str, list[Any]]) -> dict[str, Any]:
        """user_options from the submitted form."""
        return profiles.from_form(posted)

    async def read_choice(self, user_options: Any) -> Choice:
        """The checked choice in `user_options`. Raises GPUSpawnerError."""
        return profiles.read_choice(user_options, await self._profiles())

    def _apply_overrides(self, spawner_override: dict[str, Any]) -> None:
        """What a profile changes is changed back before the next start: the spawner of a failed one lives on."""
        for name in spawner_override:
            if name not in self._before_profile:
                self._before_profile[name] = copy.deepcopy(getattr(self, name))
        super()._apply_overrides(spawner_override)

    def _forget_profile(self) -> None:
        for name, value in self._before_profile.items():
            setattr(self, name, value)
        self._before_profile = {}

    # -- state -----------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """What a restarted hub needs to find the server again, and the last choice."""
        state: State = super().get_state()
        if self.session_id:
            state["session"] = self.session_id
        if self.choice != Choice():
            state["choice"] = {**self.choice.options, **dict(self.choice.extra)}
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.session_id = state.get("session", "")
        try:
            # The profiles of a hub that has just started cannot be asked for here; the form leaves out what is gone.
            self.choice = profiles.recalled(state.get("choice", {}))
        except GPUSpawnerError as error:
            self.log.warning("Forgetting the last choice of %s: %s", self._log_name, error)
            self.choice = Choice()

    def clear_state(self) -> None:
        super().clear_state()
        self.session_id = ""

    # -- start -----------------------------------------------------------------------------------------

    def start(self) -> Awaitable[str]:
        """Ask for a session and start its pod. Whatever goes wrong or cancels this, the session is given back."""
        self._start_future = self._patient(self._start_session())
        return self._start_future

    async def _start_session(self) -> str:
        self.steps, self.failure = Steps(), None
        self._may_hold, self._name_is_ours = True, False
        try:
            await self._check_name()
            self._name_is_ours = True
            url = await self._start_somewhere()
        except BaseException as error:
            if isinstance(error, Refused) and error.status_code == 400 and self.wanted == self.choice:
                self.choice = Choice()  # it names what is not there any more
            self.failure = self._failure(error)
            self._not_counted(error)
            if isinstance(error, asyncio.CancelledError):
                self._answer_cancelled(self.failure.happened)
            await self._undo_start()
            raise
        self.choice = self.wanted
        self._remember(profiles.stored(self.choice, await self._profiles()))
        cards = card_names(self._session)
        self.steps.take("server", 80, f"The server is up{f' on {cards}' if cards else ''} and loads its extensions.")
        return url

    async def _check_name(self) -> None:
        """KubeSpawner deletes a pod that has the name of the new one; another hub's of this namespace is not ours."""
        try:
            pod = await self.api.read_namespaced_pod(self.pod_name, self.namespace)
        except ApiException as error:
            if error.status == 404:
                return
            raise Refused(503, f"The cluster does not answer now ({error.reason}).", code="unavailable") from error
        labels = pod.metadata.labels or {}
        if names.SESSION_LABEL not in labels or labels.get("hub.jupyter.org/username") is None:
            message = f"There is another pod named {self.pod_name}. Give each hub of a namespace its own pod names."
            raise Refused(409, message, code="name_taken")

    async def _start_somewhere(self) -> str:
        for attempt in range(1, ATTEMPTS + 1):
            self._forget_profile()
            offered = await self.offered_environments()
            environment = self.wanted.environment or (offered[0].name if offered else None)
            self._session, self._pod = await obtain_session(
                self.service,
                self.user.name,
                self.name,
                self.wanted,
                self.default_share,
                self.steps,
                environment,
                self.longest_wait,
            )
            if "labels" not in self._pod:
                raise Refused(503, "The GPU service here serves one machine and no cluster.", code="unavailable")
            self.session_id = self._session["id"]
            self.user_options = profiles.stored(self.wanted, await self._profiles())
            self._save()
            cards = card_names(self._session)
            chosen = f"Chosen: {self._session['share']} of {cards}." if cards else "No card, as you asked."
            self.steps.take("card", 40, chosen)
            try:
                async with self._own_time():
                    return await self._start_pod()
            except _PlaceAgain as again:
                self.log.warning("Placing %s again (%s of %s): %s", self._log_name, attempt, ATTEMPTS, again)
                if attempt == ATTEMPTS:
                    message = f"No place could be found where the server can start. The last reason was: {again}."
                    raise Refused(409, message, code="no_room") from again
                self.steps.take("place", 15, "Somebody else was faster there; another place is looked for.")
                await self._delete_pod()
                await self._release()
                self._may_hold = True
        raise AssertionError  # the last attempt returns or raises

    async def _start_pod(self) -> str:
        """KubeSpawner's own start, unless the service takes the pod away first. Raises _PlaceAgain."""
        self._made_at = None
        starting = asyncio.ensure_future(super()._start())
        telling = asyncio.ensure_future(self._tell_events())
        lost = asyncio.ensure_future(self._lost())
        try:
            await asyncio.wait([starting, lost], return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                url: str = starting.result()
                return url
            raise lost.result()
        finally:
            for task in (starting, telling, lost):
                task.cancel()
            await asyncio.gather(starting, telling, lost, return_exceptions=True)

    async def _lost(self) -> Exception:
        """Returns when the pod was made and is deleted by somebody, with what the service says of that."""
        key = f"{self.namespace}/{self.pod_name}"
        label = self.session_id
        seen, looked = False, 0.0
        while True:
            await asyncio.sleep(_LOOK)
            pod = self.pod_reflector.pods.get(key) if self.pod_reflector else None
            meta = pod["metadata"] if pod is not None else {}
            if (meta.get("labels") or {}).get(names.SESSION_LABEL) == label:
                seen = True
                if "deletionTimestamp" not in meta:
                    continue
            # what comes and goes within a moment, the reflector may never show
            now = time.monotonic()
            if not seen and (self._made_at is None or now - max(self._made_at, looked) < _UNSEEN):
                continue
            looked = now
            if seen or await self._is_gone(label):
                return await self._why_lost()

    async def _is_gone(self, session: str) -> bool:
        """Whether the API server has no pod of that session under our name."""
        try:
            pod = await self.api.read_namespaced_pod(self.pod_name, self.namespace)
        except ApiException as error:
            return bool(error.status == 404)
        return bool((pod.metadata.labels or {}).get(names.SESSION_LABEL) != session)

    async def _make_create_pod_request(self, pod: Any, request_timeout: Any) -> bool:
        """KubeSpawner's, and when it was done."""
        made: bool = await super()._make_create_pod_request(pod, request_timeout)
        if made:
            self._made_at = time.monotonic()
        return made

    async def _why_lost(self) -> Exception:
        """What the service says of it, which writes it down a moment later."""
        reason = "its pod was deleted"
        for _ in range(round(_TOLD_WITHIN / _LOOK)):
            try:
                session = await self.service.request("GET", f"/sessions/{self.session_id}")
            except Refused as refused:
                return refused
            if session["state"] in ("ending", "ended"):
                reason = session.get("end_reason") or reason
                break
            await asyncio.sleep(_LOOK)
        if reason.startswith(names.PLACE_AGAIN):
            return _PlaceAgain(reason.partition(": ")[2] or reason)
        return Refused(424, f"Your server ended while it was starting: {reason}.", code="ended")

    async def _tell_events(self) -> None:
        """The pod's events become steps of the start as they come."""
        told = 0
        while True:
            await asyncio.sleep(_LOOK)
            found = self.events if self.events_enabled and self.pod_reflector else []
            for event in found[told:]:
                part = _PARTS.get(event.get("reason"), "server")
                self.steps.take(part, 60 if part == "server" else 50, str(event.get("message")))
            told = max(told, len(found))

    async def get_pod_manifest(self) -> Any:
        """KubeSpawner's pod with the session's claim."""
        return with_session(await super().get_pod_manifest(), self._session, self._pod)

    def get_env(self) -> dict[str, Any]:
        """KubeSpawner's variables, and the session's."""
        env: dict[str, Any] = super().get_env()
        return env | session_variables(self._session, self.service_url) if self._session else env

    async def _undo_start(self) -> None:
        """Leave nothing behind of a start that failed or was cancelled."""
        await self._delete_pod()
        await self._release()
        self.clear_state()
        self._forget_profile()
        self._remember(profiles.stored(self.choice, []))

    async def _delete_pod(self) -> None:
        if not self._name_is_ours:
            return
        try:
            await to_the_end(super().stop(now=True))
        except Exception:  # the service deletes the pod of a session that has ended
            self.log.exception("The pod of %s could not be deleted", self._log_name)

    # -- life ------------------------------------------------------------------------------------------

    async def poll(self) -> int | None:
        """None while the pod runs, else its exit status. Ends a dead server's session."""
        status: int | None = await super().poll()
        if status is not None:
            if self._waiting_for_response:
                self._never_answered(f"The notebook server ended with status {status} before it was ready.")
            await self._release()
            self.session_id = ""
        return status

    async def stop(self, now: bool = False) -> None:
        """Delete the pod, then end its session."""
        if self._waiting_for_response and not now:
            self._never_answered(f"The notebook server did not answer within {self.http_timeout} seconds.")
        try:
            await super().stop(now)
        finally:
            await self._release()
