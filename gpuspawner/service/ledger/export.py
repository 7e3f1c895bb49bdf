"""The ledger's rows as CSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from gpuspawner.errors import Unavailable
from gpuspawner.service.ledger.chain import COLUMNS

FORMATS = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
_NAMES = (*COLUMNS, "hash")
#: With what a spreadsheet begins a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_TEXT = {"session", "user", "server", "kind", "model", "cards", "currency", "actor", "reason", "node", "method"}
_BATCH = 50_000


def cell(value: Any) -> Any:
    """A CSV cell: text that a spreadsheet would take for a formula gets an apostrophe in front. Numbers stay."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def csv_lines(rows: Iterable[Any]) -> Iterator[str]:
    """CSV (RFC 4180) with a header; unknown is an empty cell."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(_NAMES)
    for row in rows:
        writer.writerow([cell(getattr(row, name)) for name in _NAMES])
        if buffer.tell() > 65536:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def json_lines(rows: Iterable[Any]) -> Iterator[str]:
    """A JSON object a line; unknown is null."""
    for row in rows:
        yield json.dumps({name: getattr(row, name) for name in _NAMES}) + "\n"


def parquet(rows: Iterable[Any]) -> Iterator[bytes]:
    """Parquet; unknown is null. Raises Unavailable where pyarrow is not installed."""
    try:
        import pyarrow
        from pyarrow.parquet import ParquetWriter
    except ImportError:
        raise Unavailable(
            "Parquet needs pyarrow on the service's machine: pip install 'gpuspawner[parquet]'."
        ) from None
    kinds = [(name, pyarrow.string() if name in _TEXT | {"prev", "hash"} else pyarrow.int64()) for name in _NAMES]
    schema = pyarrow.schema(kinds)
    buffer = io.BytesIO()

    def batches() -> Iterator[Any]:
        batch = []
        for row in rows:
            batch.append({name: getattr(row, name) for name in _NAMES})
            if len(batch) == _BATCH:
                yield batch
                batch = []
        yield batch

    def write() -> Iterator[bytes]:
        with ParquetWriter(buffer, schema) as writer:
            for batch in batches():
                writer.write_table(pyarrow.Table.from_pylist(batch, schema))
                yield buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
        yield buffer.getvalue()

    return write()
