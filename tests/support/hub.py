"""Users of a running stack: they start servers by the form or the API, and compute in kernels."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import uuid
from typing import Any
from urllib.parse import quote

import httpx
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from .common import until
from .stack import Stack

READY_WITHIN = 120.0


class User:
    """Somebody signed in. `server` is a named server's name, or empty for the default one."""

    def __init__(self, hub: Hub, name: str) -> None:
        self.hub = hub
        self.name = name
        self._opened = contextlib.ExitStack()
        self.browser = self._opened.enter_context(hub.stack.browser(name))
        self.browser.get("/hub/home")
        self._headers = {
            "X-XSRFToken": self.browser.xsrf("/hub/"),
            "Referer": f"{hub.stack.url}/hub/token",
        }

    def __enter__(self) -> User:
        return self

    def __exit__(self, *_: object) -> None:
        # where the test has ended the stack, there is nobody to ask
        with self._opened, contextlib.suppress(httpx.ConnectError):
            for session in self.sessions():
                self.stop(session["server"])

    def api(self, method: str, path: str = "", **kwargs: Any) -> httpx.Response:
        """A request to JupyterHub's API below this user."""
        address = f"/hub/api/users/{quote(self.name, safe='')}{path}"
        return self.browser.request(method, address, headers=self._headers, **kwargs)

    def ask(self, options: Any, server: str = "") -> httpx.Response:
        """Ask for a server by the API; `options` None sends no body."""
        content = None if options is None else json.dumps(options)
        return self.api("POST", f"/servers/{quote(server, safe='')}" if server else "/server", content=content)

    def start(self, options: Any = None, server: str = "") -> dict[str, Any]:
        """A server by the API, ready; its session at the service."""
        answer = self.ask(options, server)
        assert answer.status_code in (201, 202), answer.text
        return self.ready(server)

    def ready(self, server: str = "") -> dict[str, Any]:
        """Wait until the server is ready; its session at the service."""
        until(lambda: self.server(server).get("ready"), READY_WITHIN, f"the server of {self.name}")
        return self.session(server)

    def server(self, server: str = "") -> dict[str, Any]:
        """JupyterHub's model of the server; empty where there is none."""
        answer = self.api("GET")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()["servers"].get(server) or {}
        return found

    def sessions(self, server: str | None = None) -> list[dict[str, Any]]:
        """What the service holds for this user."""
        return self.hub.sessions(self.name, server)

    def session(self, server: str = "") -> dict[str, Any]:
        """The one session of a server."""
        (found,) = self.sessions(server)
        return found

    def form(self, server: str = "") -> httpx.Response:
        """The spawn page."""
        return self.browser.get(f"/hub/spawn/{quote(self.name, safe='')}{'/' + server if server else ''}")

    def submit(self, fields: dict[str, Any], server: str = "") -> httpx.Response:
        """Send the form."""
        page = f"/hub/spawn/{quote(self.name, safe='')}{'/' + server if server else ''}"
        data = {**fields, "_xsrf": self.browser.xsrf("/hub/")}
        return self.browser.post(page, data=data)

    def stop(self, server: str = "") -> None:
        """Stop the server; returns when the service holds nothing for it."""
        answer = self.api("DELETE", f"/servers/{quote(server, safe='')}" if server else "/server")
        assert answer.status_code in (202, 204), answer.text
        until(lambda: not self.sessions(server), 60, f"the end of the session of {self.name}")
        until(lambda: not self.server(server).get("pending"), 60, "the hub to be done with the server")

    def kernel(self, server: str = "") -> Kernel:
        """A new kernel on the running server."""
        return Kernel(self, server)


class ServerKernel:
    """A kernel of the Jupyter server at `base`, spoken to with `headers`."""

    def __init__(self, base: str, headers: dict[str, str]) -> None:
        self.base, self.headers = base, headers
        answer = httpx.post(f"{self.base}api/kernels", headers=self.headers, json={}, timeout=60)
        assert answer.status_code == 201, answer.text
        self.id = answer.json()["id"]

    def __call__(self, code: str, within: float = 60) -> str:
        """Run `code`; what it printed. AssertionError if it raised, TimeoutError after `within` seconds."""
        return asyncio.run(self._run(code, within))

    async def _run(self, code: str, within: float) -> str:
        address = f"{self.base}api/kernels/{self.id}/channels".replace("http:", "ws:")
        socket = await websocket_connect(HTTPRequest(address, headers=self.headers))
        sent = uuid.uuid4().hex
        header = {"msg_id": sent, "msg_type": "execute_request", "session": sent, "username": "", "version": "5.4"}
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
        await socket.write_message(json.dumps(message))
        printed = ""
        async with asyncio.timeout(within):
            while True:
                raw = await socket.read_message()
                assert raw is not None, "the kernel's socket was closed"
                answer = json.loads(raw)
                if answer["parent_header"].get("msg_id") != sent:
                    continue
                kind, body = answer["msg_type"], answer["content"]
                assert kind != "error", "\n".join(body["traceback"])
                if kind == "stream":
                    printed += body["text"]
                if kind == "status" and body["execution_state"] == "idle":
                    socket.close()
                    return printed

    def answers(self) -> bool:
        """Whether it can be reached through the proxy now."""
        try:
            return httpx.get(f"{self.base}api/kernels/{self.id}", headers=self.headers, timeout=10).status_code == 200
        except httpx.HTTPError:
            return False


class Kernel(ServerKernel):
    """A kernel, spoken to through the proxy. What is signed in is a token, which survives restarts of the hub."""

    def __init__(self, user: User, server: str) -> None:
        name = quote(user.name, safe="@")  # as JupyterHub writes it
        base = f"{user.hub.stack.url}/user/{name}/{server + '/' if server else ''}"
        super().__init__(base, {"Authorization": f"token {user.hub.stack.token(user.name)}"})


class Hub:
    """A stack and its users."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def user(self, name: str) -> User:
        """Sign in."""
        return User(self, name)

    def sessions(self, user: str | None = None, server: str | None = None) -> list[dict[str, Any]]:
        """The service's sessions that hold something."""
        asked = {key: value for key, value in (("user", user), ("server", server)) if value is not None}
        with self.stack.service() as service:
            answer = service.get("/sessions", params=asked)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["sessions"]
        return found

    def queue(self) -> list[dict[str, Any]]:
        """Who waits, the next first."""
        with self.stack.service() as service:
            found: list[dict[str, Any]] = service.get("/queue").json()["queue"]
        return found

    def free_eighths(self) -> int:
        """Eighths that could be started now."""
        with self.stack.service() as service:
            offers = service.get("/offers").json()["offers"]
        return sum(int(offer["free_places"]) for offer in offers if offer["share"] == "1/8")

    def kill(self, part: str) -> None:
        """kill -9 of a part; returns when the supervisor has started it again."""
        pid = self.stack.pid_of(part)
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.stack.pid_of(part) != pid, 30, f"another {part}")

    def answers(self, path: str) -> bool:
        """Whether `path` can be got at the public address."""
        try:
            return httpx.get(self.stack.url + path, timeout=10).status_code == 200
        except httpx.HTTPError:
            return False
