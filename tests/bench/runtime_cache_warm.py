"""Reading what is cached, over reading the same files without a cache; the disk's own cache is warm for both."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from gpuspawner_runtime.cache import cached

OBJECTS, SIZE, ROUNDS = 100, 1000**2, 15


def main() -> None:
    """Prints the ratio of the medians."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "set"
        place.mkdir()
        names = [f"{i:03}" for i in range(OBJECTS)]
        for name in names:
            (place / name).write_bytes(os.urandom(SIZE))
        data = cached(f"file://{place}/", "1GB", memory=0, folder=Path(folder) / "cache")
        paths = [data.path(name) for name in names]
        for name in names:
            data.release(name)
        plain, through = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            for path in paths:
                with Path(path).open("rb") as file:
                    file.read()
            middle = time.perf_counter()
            for name in names:
                with data.open(name) as file:
                    file.read()
            plain.append(middle - began)
            through.append(time.perf_counter() - middle)
    print(
        f"{OBJECTS} objects of {SIZE // 1000**2} MB, {ROUNDS} rounds: {1000 * statistics.median(through):.1f} ms "
        f"through the cache, {1000 * statistics.median(plain):.1f} ms as plain files"
    )
    print(f"{statistics.median(through) / statistics.median(plain):.3f} times")


if __name__ == "__main__":
    main()
