"""WebDataset and MDS (mosaicml-streaming) on top of a cache.

Both keep their own formats, shuffling and resuming; only where the bytes come from changes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gpuspawner_runtime.cache.cache import Cache


class OpenShards:
    """The stage of a WebDataset pipeline that opens shards, out of a cache and with the next ones fetched ahead."""

    def __init__(self, cache: Cache, ahead: int, handler: Any) -> None:
        self._cache, self._ahead, self._handler = cache, ahead, handler

    def __call__(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        found = list(shards)
        with self._cache.ahead([shard["url"] for shard in found], self._ahead) as advance:
            for shard in found:
                advance()
                try:
                    stream = self._cache.open(shard["url"])
                except Exception as error:
                    if self._handler(error):
                        continue
                    break
                yield {**shard, "stream": stream, "local_path": stream.name}


def webdataset(cache: Cache, shards: str | list[str], ahead: int = 2, **options: Any) -> Any:
    """A `webdataset.WebDataset` of shards of the cache: `webdataset(data, "train-{0000..0099}.tar", shardshuffle=100)`.

    `options` are WebDataset's. Shards are resampled without end only with its own `resampled=True`, for which the list
    of the next shards is not known: then nothing is fetched ahead.
    """
    import webdataset as wds

    dataset = wds.WebDataset(shards, **options)
    handler = options.get("handler", wds.reraise_exception)
    endless = options.get("resampled") or options.get("mode") == "resampled"
    stage = _OpenEach(cache, 0, handler) if endless else OpenShards(cache, ahead, handler)
    places = [
        i for i, one in enumerate(dataset.pipeline) if isinstance(one, wds.cache.StreamingOpen | wds.cache.FileCache)
    ]
    dataset.pipeline[places[0]] = stage
    return dataset


class _OpenEach(OpenShards):
    """For shards without an end."""

    def __call__(self, shards: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for shard in shards:
            yield from super().__call__([shard])


def mds(cache: Cache, local: str | os.PathLike[str], **options: Any) -> Any:
    """A `streaming.StreamingDataset` whose shards come out of the cache: `mds(data, "/scratch/mds", batch_size=32)`.

    `local`: streaming's own folder; on the cache's disk a shard there is a link, and takes no room of its own.
    `options` are StreamingDataset's.
    """
    from streaming import Stream, StreamingDataset
    from streaming.base.storage.download import CloudDownloader

    class Downloader(CloudDownloader):  # type: ignore[misc]
        """Links or copies out of the cache."""

        @staticmethod
        def _client_identifier() -> str:
            return ""

        def clean_up(self) -> None:
            pass

        def _download_file_impl(self, remote: str, local: str, timeout: float) -> None:
            name = os.path.relpath(remote, _MDS_ROOT)
            _place(cache, name, Path(local))

    stream = Stream(remote=_MDS_ROOT, local=os.fspath(local), split=options.pop("split", None))
    stream._downloader = Downloader()
    return StreamingDataset(streams=[stream], **options)


#: Stands for the cache's address where streaming wants a folder; nothing is ever there.
_MDS_ROOT = "/gpuspawner-cache"


def _place(cache: Cache, name: str, local: Path) -> None:
    """Let an object of the cache appear at `local`, whole."""
    source = cache.path(name)
    try:
        part = local.with_name(f".{local.name}.{os.getpid()}")
        part.unlink(missing_ok=True)
        try:
            os.link(source, part)
        except OSError:  # another disk
            shutil.copyfile(source, part)
        part.replace(local)
    finally:
        cache.release(name)
