"""What can go wrong with a cache, one class for each thing that a program may want to do something about."""

from __future__ import annotations

from typing import Any

from gpuspawner_runtime.errors import RuntimeFault


class CacheError(RuntimeFault):
    """Something about a cache; the sentence says what and what helps."""

    code = "cache"

    def __init__(self, message: str, **more: Any) -> None:
        super().__init__(message, **{"code": type(self).code, **more})


class CacheTooSmall(CacheError):
    """One object is larger than the whole cache may become."""

    code = "cache-too-small"


class CacheFull(CacheError):
    """There is no room now: what is cached is in use, or the disk is full."""

    code = "cache-full"


class CacheCorrupt(CacheError):
    """What arrived is not what the store, or the given hash, says it is."""

    code = "cache-corrupt"
