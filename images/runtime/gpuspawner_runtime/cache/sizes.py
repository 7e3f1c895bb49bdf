"""Sizes as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(I?)B?\s*", re.IGNORECASE)


def parse_size(value: int | str, field: str) -> int:
    """Bytes of `"8GB"` (decimal), `"8GiB"` (binary) or a number of bytes.

    Raises ValueError with the field's name, what was given and what is allowed.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None or (match[3] and not match[2]):
        raise ValueError(f'{field}={value!r} is no size: write bytes as a whole number, or "500MB", "8GB", "8GiB".')
    unit = match[2].upper()
    return int(float(match[1]) * (_BINARY[unit] if match[3] else _UNITS[unit]))


def show_size(count: int) -> str:
    """A size for people, in decimal units: `1.5 GB`."""
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
