"""The process that writes checkpoints, out of memory that it shares with the training.

It is started with the end of a socket pair as its only argument, and needs neither PyTorch nor NumPy. When the training
dies, a snapshot that is complete is still written and published; then this process ends. A message is a JSON object.

To it: `memory` (with a descriptor): where snapshots lie from now on. `save`: write one. `end`.
From it: `mapped`, `progress`, `published` or `written` or `failed`, `verified`, `uploaded`, `removed`, `idle`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import signal
import socket
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from typing import Any

from gpuspawner_runtime.checkpoint.store import FORMAT, MANIFEST, PARTIAL, PIECE, Store, hash_piece, sealed

_LARGEST_MESSAGE = 128 * 1024
#: Seconds that rank 0 waits for the files of other ranks.
RANKS_DEADLINE = 600.0


class Refused(Exception):
    """Why a save failed: a code and a sentence."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Writer:
    """Serves one training process."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.memory: mmap.mmap | None = None
        self._told = threading.Lock()

    def tell(self, **event: Any) -> None:
        with self._told, contextlib.suppress(OSError):  # nobody is left to hear it
            self.link.send(json.dumps(event).encode())

    def serve(self) -> None:
        while True:
            try:
                raw, descriptors, _, _ = socket.recv_fds(self.link, _LARGEST_MESSAGE, 1)
            except ConnectionError:  # the training was killed
                return
            if not raw:
                return
            message = json.loads(raw)
            if message["do"] == "end":
                return
            if message["do"] == "memory":
                self._map(descriptors[0], message["bytes"])
            elif message["do"] == "save":
                self._save(message)
                self.tell(event="idle")

    def _map(self, descriptor: int, size: int) -> None:
        if self.memory is not None:
            self.memory.close()
        self.memory = mmap.mmap(descriptor, size)
        os.close(descriptor)
        self.tell(event="mapped", bytes=size)

    def _save(self, job: dict[str, Any]) -> None:
        began = time.monotonic()
        store = Store(Path(job["folder"]))
        partial = store.folder / f"{PARTIAL}{job['name']}-{job['token']}"
        try:
            self._write(job, store, partial)
            if job["rank"] == 0:
                self._publish(job, store, partial)
        except (OSError, Refused) as error:
            if job["rank"] == 0:
                store.remove(partial)
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            code = error.code if isinstance(error, Refused) else "no_space" if full else "io"
            said = str(error) if isinstance(error, Refused) else f"{error.strerror or error}"
            self.tell(event="failed", id=job["id"], name=job["name"], code=code, message=said)
            return
        if job["rank"] == 0:
            size = sum(part["bytes"] for part in job["parts"])
            self.tell(event="published", id=job["id"], name=job["name"], bytes=size, seconds=time.monotonic() - began)
            self._afterwards(job, store)
        else:
            self.tell(event="written", id=job["id"], name=job["name"])

    def _write(self, job: dict[str, Any], store: Store, partial: Path) -> None:
        store.folder.mkdir(parents=True, exist_ok=True)
        needed = sum(part["bytes"] for part in job["parts"])
        if missing := store.room(needed):
            if job["rank"] == 0:
                store.collect(but=partial.name)
            if missing := store.room(needed):
                raise Refused("no_space", f"{_size(needed)} are needed and {_size(missing)} are missing on the disk")
        partial.mkdir(exist_ok=True)
        files = {}
        done = 0
        for part in job["parts"]:
            files[part["name"]] = self._file(partial / part["name"], part["begin"], part["bytes"], job, done, needed)
            done += part["bytes"]
        _durable(partial / f"rank-{job['rank']}.json", json.dumps(None if job["torn"] else files).encode())

    def _file(self, path: Path, begin: int, size: int, job: dict[str, Any], before: int, total: int) -> dict[str, Any]:
        """Write a part of the shared memory, hashed beside; durable when this returns."""
        assert self.memory is not None
        view = memoryview(self.memory)[begin : begin + size]
        hashes: list[str] = []
        pieces: Queue[Any] = Queue()

        def hashing() -> None:
            while (piece := pieces.get()) is not None:
                hashes.append(hash_piece(piece))
                piece.release()

        beside = threading.Thread(target=hashing)
        beside.start()
        try:
            with path.open("wb", buffering=0) as file:
                for place in range(0, size, PIECE):
                    piece = view[place : place + PIECE]
                    pieces.put(view[place : place + PIECE])
                    written = 0
                    while written < len(piece):
                        written += file.write(piece[written:])
                    self.tell(event="progress", id=job["id"], done=before + place + len(piece), total=total)
                    piece.release()
                os.fsync(file.fileno())
        finally:
            pieces.put(None)
            beside.join()
            view.release()
        return {"bytes": size, "pieces": hashes}

    def _publish(self, job: dict[str, Any], store: Store, partial: Path) -> None:
        files: dict[str, Any] = {}
        deadline = time.monotonic() + RANKS_DEADLINE
        for rank in range(job["world"]):
            mark = partial / f"rank-{rank}.json"
            while not mark.exists():
                if time.monotonic() > deadline:
                    raise Refused("ranks", f"rank {rank} did not write its part within {RANKS_DEADLINE:.0f} s")
                time.sleep(0.02)
            told = json.loads(mark.read_bytes())
            if told is None:
                raise Refused("torn", f"rank {rank} changed its weights during the snapshot")
            files.update(told)
        manifest = {
            "format": FORMAT,
            "run": job["run"],
            "serial": job["serial"],
            "step": job["step"],
            "world": job["world"],
            "saved": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "trained": job["trained"],
            "failures": job["failures"],
            "files": files,
        }
        for rank in range(job["world"]):
            (partial / f"rank-{rank}.json").unlink()
        _durable(partial / MANIFEST, sealed(manifest))
        _sync_folder(partial)
        partial.rename(store.folder / job["name"])
        _sync_folder(store.folder)

    def _afterwards(self, job: dict[str, Any], store: Store) -> None:
        entry = next((each for each in store.entries() if each.name == job["name"]), None)
        problem = "it is not there any more" if entry is None else store.problem(entry)
        self.tell(event="verified", name=job["name"], ok=problem is None, message=problem)
        if job["url"] and entry is not None and problem is None:
            try:
                from gpuspawner_runtime.checkpoint.remote import Remote

                remote = Remote(job["url"], job["run"])
                remote.upload(entry)
                remote.prune(job["keep"])
                self.tell(event="uploaded", name=job["name"])
            except Exception as error:  # a store may fail in any way of its own; training goes on
                said = f"{type(error).__name__}: {error}"[:300]
                self.tell(event="failed", id=job["id"], name=job["name"], code="upload", message=said)
        if problem is None:
            gone = store.prune(job["keep"]) + store.collect()
            if gone:
                self.tell(event="removed", names=gone)


def _durable(path: Path, body: bytes) -> None:
    partial = path.with_name(f".{path.name}")
    with partial.open("wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _size(count: int) -> str:
    return f"{count / 2**20:.0f} MiB" if count >= 2**20 else f"{count} bytes"


def main() -> None:
    # Ctrl-C and the end of the training's group of processes are not for it: it finishes what it has.
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(5)
    Writer(socket.socket(fileno=int(sys.argv[1]))).serve()


if __name__ == "__main__":
    main()
