"""The cache over a server that speaks S3, read by s3fs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("moto", reason="moto is not installed: no S3 server to test with")
pytest.importorskip("s3fs", reason="s3fs is not installed: nothing to read S3 with")

from gpuspawner_runtime.cache import cached, download
from runtime.stores import s3_store


@pytest.fixture(scope="module")
def s3() -> Iterator[tuple[dict[str, object], Counter[str]]]:
    with s3_store("bucket") as found:
        yield found


def test_objects_of_a_bucket(
    s3: tuple[dict[str, object], Counter[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    options, requests = s3
    fs = s3fs.S3FileSystem(skip_instance_cache=True, **options)
    small, large = os.urandom(1000), os.urandom(5 * 1024 * 1024)
    fs.pipe("bucket/set/a/small.bin", small)
    fs.pipe("bucket/set/large.bin", large)
    monkeypatch.setattr(download, "PART", 1024 * 1024)
    data = cached("s3://bucket/set/", folder=tmp_path, storage_options=options, check=0)
    assert data.files() == ["a/small.bin", "large.bin"]
    requests.clear()
    assert data.read("a/small.bin") == small
    assert Path(data.path("large.bin")).read_bytes() == large
    assert requests["GET /bucket/set/a/small.bin"] == 1
    assert requests["GET /bucket/set/large.bin"] == 5, "one for each part"
    assert data.read("a/small.bin") == small
    assert requests["GET /bucket/set/a/small.bin"] == 1
    fs.pipe("bucket/set/a/small.bin", b"changed")
    assert data.read("a/small.bin") == b"changed"
    with pytest.raises(FileNotFoundError):
        data.read("none")
