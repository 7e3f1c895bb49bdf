"""Object stores for tests: a small HTTP one that counts, is slow, and changes or breaks on demand."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ObjectStore:
    """Objects by name, at `url`. `rate`: bytes a second for each connection, or None; `latency`: seconds before each
    answer; `break_after`: the next GET ends after so many bytes; `garble`: the next GETs have a wrong byte; `etags`:
    False leaves them out; `down`: answers 503."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects
        self.rate: float | None = None
        self.latency = 0.0
        self.break_after: int | None = None
        self.garble = 0
        self.etags = True
        self.down = False
        self.started = threading.Event()
        self.gets: Counter[str] = Counter()
        self.heads: Counter[str] = Counter()
        self.sent = 0
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def do_HEAD(self) -> None:
                store.heads[self.path.lstrip("/")] += 1
                self._answer(body=False)

            def do_GET(self) -> None:
                store.gets[self.path.lstrip("/")] += 1
                store.started.set()
                self._answer(body=True)

            def _answer(self, body: bool) -> None:
                time.sleep(store.latency)
                name = self.path.lstrip("/")
                if store.down or name not in store.objects:
                    self.send_response(503 if store.down else 404)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                data = store.objects[name]
                start, end = 0, len(data)
                asked = self.headers.get("Range")
                if asked:
                    first, _, last = asked.removeprefix("bytes=").partition("-")
                    start, end = int(first), min(len(data), int(last) + 1 if last else len(data))
                self.send_response(206 if asked else 200)
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(end - start))
                if asked:
                    self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
                if store.etags:
                    self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
                self.end_headers()
                if body:
                    self._send(bytearray(data[start:end]))

            def _send(self, data: bytearray) -> None:
                if store.garble:
                    store.garble -= 1
                    data[len(data) // 2] ^= 1
                if store.break_after is not None:
                    data, store.break_after = data[: store.break_after], None
                    self.close_connection = True
                step = 1 << 16
                for at in range(0, len(data), step):
                    piece = data[at : at + step]
                    if store.rate:
                        time.sleep(len(piece) / store.rate)
                    try:
                        self.wfile.write(piece)
                    except OSError:
                        return
                    store.sent += len(piece)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def object_store(objects: dict[str, bytes]) -> Iterator[ObjectStore]:
    """A store for the length of a block."""
    store = ObjectStore(objects)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def s3_store(bucket: str) -> Iterator[tuple[dict[str, object], Counter[str]]]:
    """A server that speaks S3 (moto's), with an empty bucket: fsspec's options for it, and its requests counted as `GET
    path`."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    requests: Counter[str] = Counter()
    backend = DomainDispatcherApplication(create_backend_app)

    def counted(environ: dict[str, object], start_response: object) -> object:
        requests[f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"] += 1
        return backend(environ, start_response)

    server = make_server("127.0.0.1", 0, counted, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    options: dict[str, object] = {
        "key": "test",
        "secret": "test",
        "client_kwargs": {"endpoint_url": f"http://127.0.0.1:{server.server_port}", "region_name": "us-east-1"},
    }
    try:
        import s3fs

        s3fs.S3FileSystem(skip_instance_cache=True, **options).call_s3("create_bucket", Bucket=bucket)
        yield options, requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
