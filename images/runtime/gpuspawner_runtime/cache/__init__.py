"""A cache of an object store in tiers: memory, local disk, store. Start with `cached()`."""

from gpuspawner_runtime.cache.cache import Cache, Stats, cached
from gpuspawner_runtime.cache.errors import CacheCorrupt, CacheError, CacheFull, CacheTooSmall
from gpuspawner_runtime.cache.memory import free_memory

__all__ = ["Cache", "CacheCorrupt", "CacheError", "CacheFull", "CacheTooSmall", "Stats", "cached", "free_memory"]
