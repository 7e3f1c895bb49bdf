"""A whole notebook session in one file: `park()` saves it, `unpark()` brings it back in another kernel."""

from gpuspawner_runtime.park.session import Parked, park, unpark

__all__ = ["Parked", "park", "unpark"]
