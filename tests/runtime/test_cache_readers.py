"""WebDataset and MDS on top of the cache."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpuspawner_runtime.cache import cached
from gpuspawner_runtime.cache.readers import _place
from runtime.stores import ObjectStore, object_store

SAMPLES = 12


def shard(first: int, count: int) -> bytes:
    """A WebDataset shard: samples by their number, each an image and a label."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for i in range(first, first + count):
            for ending, data in (("img", bytes([i]) * 1000), ("cls", str(i % 3).encode())):
                info = tarfile.TarInfo(f"{i:04}.{ending}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store({f"train-{i}.tar": shard(i * SAMPLES, SAMPLES) for i in range(4)}) as store:
        yield store


@pytest.mark.parametrize("workers", [0, 2])
def test_webdataset_reads_shards_once_in_all_workers(store: ObjectStore, tmp_path: Path, workers: int) -> None:
    pytest.importorskip("webdataset")
    torch_data = pytest.importorskip("torch.utils.data")
    data = cached(store.url, "10MB", folder=tmp_path)
    dataset = data.webdataset("train-{0..3}.tar", shardshuffle=False).decode().to_tuple("img", "cls")
    loader = torch_data.DataLoader(dataset, batch_size=None, num_workers=workers)
    for _ in range(2):
        found = sorted((image[0], label) for image, label in loader)
        assert found == [(i, i % 3) for i in range(4 * SAMPLES)]
    assert store.gets == {f"train-{i}.tar": 1 for i in range(4)}


def test_webdataset_without_end(store: ObjectStore, tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    data = cached(store.url, folder=tmp_path)
    dataset = iter(data.webdataset("train-{0..3}.tar", resampled=True))
    assert [len(next(dataset)["img"]) for _ in range(100)] == [1000] * 100


def test_a_missing_shard_goes_to_the_handler(store: ObjectStore, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset")
    data = cached(store.url, folder=tmp_path)
    with pytest.raises(FileNotFoundError):
        list(data.webdataset("train-{3..4}.tar", shardshuffle=False))
    kept = data.webdataset("train-{3..4}.tar", shardshuffle=False, handler=wds.ignore_and_continue)
    assert len(list(kept)) == SAMPLES


def test_mds_shards_are_links_into_the_cache(store: ObjectStore, tmp_path: Path) -> None:
    data = cached(store.url, folder=tmp_path / "cache")
    local = tmp_path / "local"
    local.mkdir()
    _place(data, "train-0.tar", local / "train-0.tar")
    assert (local / "train-0.tar").read_bytes() == store.objects["train-0.tar"]
    assert (local / "train-0.tar").stat().st_nlink == 2
    assert [path.name for path in local.iterdir()] == ["train-0.tar"]


def test_mds_by_its_own_library(tmp_path: Path) -> None:
    streaming = pytest.importorskip(
        "streaming", reason="mosaicml-streaming is not installed: it brings 150 MB and the clients of all clouds"
    )
    with streaming.MDSWriter(
        out=str(tmp_path / "set"), columns={"n": "int", "data": "bytes"}, size_limit=20_000
    ) as out:
        for n in range(500):
            out.write({"n": n, "data": os.urandom(100)})
    objects = {path.name: path.read_bytes() for path in (tmp_path / "set").iterdir()}
    with object_store(objects) as store:
        data = cached(store.url, folder=tmp_path / "cache")
        for folder in ("one", "two"):
            dataset = data.mds(tmp_path / folder, batch_size=10, shuffle=True)
            assert sorted(sample["n"] for sample in dataset) == list(range(500))
        assert set(store.gets.values()) == {1}
