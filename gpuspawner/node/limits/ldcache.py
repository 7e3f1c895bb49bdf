"""An `ld.so.cache` that leads to the shim, so that programs started with an empty environment find it too.

Format: glibc's `struct cache_file_new` (sysdeps/generic/dl-cache.h): a header of 48 bytes, `nlibs` entries of 24
bytes in falling order of their names (compared as the loader does, runs of digits as numbers), then the strings. We
make it ourselves because ldconfig takes longer than the whole start of a session and cannot see paths that exist
only inside it.
"""

from __future__ import annotations

import functools
import platform
import struct
from pathlib import Path

_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER = struct.Struct("=20sIIB3xI12x")
_ENTRY = struct.Struct("=iIIIQ")
_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03, "ppc64le": 0x0503, "s390x": 0x0403, "riscv64": 0x1003}


def _compare(one: bytes, two: bytes) -> int:
    """`_dl_cache_libcmp`: byte by byte, but a run of digits counts as the number it is."""
    i = j = 0
    while i < len(one):
        a, b = one[i : i + 1], two[j : j + 1]
        if a.isdigit():
            if not b.isdigit():
                return 1
            x = y = 0
            while one[i : i + 1].isdigit():
                x, i = x * 10 + int(one[i : i + 1]), i + 1
            while two[j : j + 1].isdigit():
                y, j = y * 10 + int(two[j : j + 1]), j + 1
            if x != y:
                return x - y
        elif b.isdigit():
            return -1
        elif a != b:
            return a[0] - (b[0] if b else 0)
        else:
            i, j = i + 1, j + 1
    return 0 - (two[j] if j < len(two) else 0)


def rewrite(cache: bytes, libraries: dict[str, str]) -> bytes | None:
    """`cache` with `libraries` (name to path) in place of what it says about those names; None if it is of another
    format.

    Entries for particular processors (glibc-hwcaps) are left out, since they refer to a table that is not copied;
    the plain variant of the same library stays.
    """
    flags = _FLAGS.get(platform.machine())
    at = cache.find(_MAGIC)
    if flags is None or at < 0 or len(cache) < at + _HEADER.size:
        return None
    _, count, _, endian, _ = _HEADER.unpack_from(cache, at)
    if len(cache) < at + _HEADER.size + count * _ENTRY.size:
        return None
    entries: list[tuple[bytes, bytes, int]] = []
    for index in range(count):
        kind, key, value, _, hwcap = _ENTRY.unpack_from(cache, at + _HEADER.size + index * _ENTRY.size)
        name = cache[at + key : cache.find(b"\0", at + key)]
        path = cache[at + value : cache.find(b"\0", at + value)]
        if hwcap == 0 and not (kind == flags and name.decode(errors="replace") in libraries):
            entries.append((name, path, kind))
    entries += [(name.encode(), path.encode(), flags) for name, path in libraries.items()]
    in_order = functools.cmp_to_key(_compare)
    entries.sort(key=lambda entry: in_order(entry[0]), reverse=True)
    strings = bytearray()
    start = _HEADER.size + len(entries) * _ENTRY.size
    table = bytearray()
    for name, path, kind in entries:
        key = start + len(strings)
        strings += name + b"\0"
        value = start + len(strings)
        strings += path + b"\0"
        table += _ENTRY.pack(kind, key, value, 0, 0)
    return _HEADER.pack(_MAGIC, len(entries), len(strings), endian, 0) + bytes(table) + bytes(strings)


@functools.lru_cache(maxsize=4)
def _rewritten(path: str, _stamp: int, libraries: tuple[tuple[str, str], ...]) -> bytes | None:
    return rewrite(Path(path).read_bytes(), dict(libraries))


def for_session(libraries: dict[str, str], path: str = "/etc/ld.so.cache") -> bytes | None:
    """This machine's cache rewritten, kept until the machine's changes; None where there is none that we can read."""
    try:
        return _rewritten(path, Path(path).stat().st_mtime_ns, tuple(sorted(libraries.items())))
    except OSError:
        return None
