"""An API server in memory, as far as a fleet sees one: lists, watches, versions, preconditions, finalizers; and its
faults. The tests in tests/cluster/ use a real one; this one can be made slow, busy, forgetful and cut off at will."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration

from gpuspawner.kubernetes_api import KubeApi

Object = dict[str, Any]


class FakeKubernetes:
    """Objects by their path. Runs in a thread and an event loop of its own."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.history: list[tuple[int, str, str, Object]] = []  # version, path, type, object
        self.version = 100
        self.oldest = 0  # versions before it cannot be watched from any more
        self.requests: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], int | float | None] = lambda method, path: None
        self._lock = threading.RLock()
        self._watches: dict[asyncio.Queue[bool], web.Request] = {}  # True in the queue: it is cut
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)

    async def _serve(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def close(self) -> None:
        self.cut_watches()
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def connect(self) -> KubeApi:
        """A connection as a fleet makes one."""
        return KubeApi(ApiClient(Configuration(host=self.url)))  # type: ignore[no-untyped-call]

    # -- what a test does --------------------------------------------------------------------------------

    def put(self, path: str, content: Object) -> Object:
        """An object is so from now on."""
        with self._lock:
            known = self.objects.get(path)
            meta = content.setdefault("metadata", {})
            meta["name"] = path.rpartition("/")[2]
            parts = path.split("/")
            if "namespaces" in parts[:-2]:
                meta["namespace"] = parts[parts.index("namespaces") + 1]
            meta["uid"] = known["metadata"]["uid"] if known else str(uuid.uuid4())
            meta.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            self._note("MODIFIED" if known else "ADDED", path, content)
            return content

    def change(self, path: str, change: Callable[[Object], None]) -> Object:
        """Somebody changes an object."""
        with self._lock:
            content = copy.deepcopy(self.objects[path])
            change(content)
            if content["metadata"].get("deletionTimestamp") and not content["metadata"].get("finalizers"):
                self.vanish(path)
            else:
                self._note("MODIFIED", path, content)
            return content

    def vanish(self, path: str) -> None:
        """An object is gone."""
        with self._lock:
            if path in self.objects:
                content = self.objects[path]
                self._note("DELETED", path, content)
                del self.objects[path]

    def get(self, path: str) -> Object | None:
        """An object as it is."""
        with self._lock:
            return copy.deepcopy(self.objects.get(path))

    def under(self, folder: str) -> dict[str, Object]:
        """All objects of a kind, by name."""
        with self._lock:
            return {path.rpartition("/")[2]: each for path, each in self.objects.items() if _in(path, folder)}

    def forget_history(self) -> None:
        """Old versions are compacted away: watches from before end with 410."""
        with self._lock:
            self.oldest = self.version
        self.cut_watches()

    def cut_watches(self) -> None:
        """Every connection that watches breaks."""
        asyncio.run_coroutine_threadsafe(self._cut_watches(), self._loop).result(10)

    async def _cut_watches(self) -> None:
        for queue, request in list(self._watches.items()):
            if request.transport is not None:
                request.transport.abort()
            queue.put_nowait(True)

    @contextmanager
    def faulty(self, fault: Callable[[str, str], int | float | None]) -> Iterator[None]:
        """While it lasts `fault` says for each request (method, path) which status it gets (an int), by how many
        seconds it is late (a float), or None."""
        self.fault = fault
        try:
            yield
        finally:
            self.fault = lambda method, path: None

    def _note(self, kind: str, path: str, content: Object) -> None:
        self.version += 1
        content["metadata"]["resourceVersion"] = str(self.version)
        if kind != "DELETED":
            self.objects[path] = content
        self.history.append((self.version, path, kind, copy.deepcopy(content)))
        for queue in list(self._watches):
            self._loop.call_soon_threadsafe(queue.put_nowait, False)

    # -- what the server answers ---------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path, method = request.path, request.method
        self.requests.append((method, path))
        fault = self.fault(method, path)
        if isinstance(fault, float):
            await asyncio.sleep(fault)
        elif fault is not None:
            return _status(fault, "a fault of the test")
        if method == "GET" and request.query.get("watch"):
            return await self._watch(request)
        body = await request.read()
        with self._lock:
            return self._answer(method, path, dict(request.query), json.loads(body) if body else {})

    def _answer(self, method: str, path: str, query: dict[str, str], body: Object) -> web.Response:
        known = self.objects.get(path)
        if method == "POST":
            name = body["metadata"]["name"]
            if f"{path}/{name}" in self.objects:
                return _status(409, "AlreadyExists")
            if path.endswith("/pods"):
                body.setdefault("status", {"phase": "Pending"})
            return web.json_response(self.put(f"{path}/{name}", body), status=201)
        if method == "GET" and known is None and path.rpartition("/")[2] in _PLURALS:
            found = [each for at, each in self.objects.items() if _in(at, path) and _selected(each, query)]
            return web.json_response({"items": found, "metadata": {"resourceVersion": str(self.version)}})
        if known is None:
            return _status(404, f"{path} not found")
        if method == "PATCH":
            meta = body.get("metadata", {})
            for field in ("resourceVersion", "uid"):
                if meta.get(field, known["metadata"][field]) != known["metadata"][field]:
                    return _status(409, "the object has been modified")
            changed = copy.deepcopy(known)
            _merge(changed, body)
            self._note("MODIFIED", path, changed)
            return web.json_response(changed)
        if method == "DELETE":
            wanted = (body.get("preconditions") or {}).get("uid")
            if wanted and wanted != known["metadata"]["uid"]:
                return _status(409, "the uid in the precondition is another one")
            if known["metadata"].get("finalizers"):
                if not known["metadata"].get("deletionTimestamp"):
                    self.change(path, lambda each: each["metadata"].update(deletionTimestamp="2030-01-01T00:00:00Z"))
            else:
                self.vanish(path)
        return web.json_response(self.objects.get(path) or known)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        queue: asyncio.Queue[bool] = asyncio.Queue()
        queue.put_nowait(False)
        await answer.prepare(request)
        self._watches[queue] = request
        version = int(request.query["resourceVersion"])
        try:
            if version < self.oldest:
                gone = {"code": 410, "message": "too old resource version"}
                await _write(answer, {"type": "ERROR", "object": gone})
                return answer
            while not await queue.get():
                with self._lock:
                    news = [each for each in self.history if each[0] > version]
                for at, path, kind, content in news:
                    version = at
                    if _in(path, request.path) and _selected(content, dict(request.query)):
                        await _write(answer, {"type": kind, "object": content})
        except ConnectionError:
            pass
        finally:
            self._watches.pop(queue, None)
        return answer


_PLURALS = ("nodes", "pods", "events", "persistentvolumeclaims", "resourceslices", "resourceclaims")


async def _write(answer: web.StreamResponse, event: Object) -> None:
    await answer.write(json.dumps(event).encode() + b"\n")


def _status(code: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "code": code, "message": message}, status=code)


def _in(path: str, folder: str) -> bool:
    """Whether an object is in a list, that of all namespaces included."""
    if path.rpartition("/")[0] == folder:
        return True
    group, _, plural = folder.rpartition("/")
    return path.startswith(f"{group}/namespaces/") and path.split("/")[-2] == plural


def _selected(content: Object, query: dict[str, str]) -> bool:
    labels = defaultdict(str, content["metadata"].get("labels") or {})
    for part in filter(None, query.get("labelSelector", "").split(",")):
        key, equals, value = part.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    key, _, value = query.get("fieldSelector", "").partition("=")
    found: Any = content
    for part in filter(None, key.split(".")):
        found = (found or {}).get(part)
    return not key or found == value


def _merge(into: Object, change: Object) -> None:
    for key, value in change.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = value
