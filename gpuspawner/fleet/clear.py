"""`python -m gpuspawner.fleet.clear`: ends every session of an installation on a cluster, before the installation goes.

First the pods, so that the nodes hear that their claims are not used any more, then the claims; and again, as long as
somebody starts new ones. Ends when none is left.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time

from gpuspawner import kubernetes_names as names
from gpuspawner.errors import GPUSpawnerError, Unavailable
from gpuspawner.fleet.cleaning import paths
from gpuspawner.kubernetes_api import ApiError, KubeApi

log = logging.getLogger(__name__)
#: Seconds within which everything has to be gone, and between two looks.
WITHIN = 240.0
_EVERY = 0.5


async def clear(api: KubeApi, namespace: str, instance: str, within: float = WITHIN) -> int:
    """Delete the pods and claims of `instance` in `namespace`; how many there were. Raises Unavailable where some are
    left after `within` seconds."""
    where, ours = paths(namespace), f"{names.SESSION_LABEL},{names.INSTANCE_LABEL}={instance}"
    deadline, seen, left = time.monotonic() + within, set(), ["anything"]
    while left:
        if time.monotonic() > deadline:
            raise Unavailable(f"Still there after {within:g} seconds: {', '.join(left)}.")
        try:
            left = []
            for path in (where.pods, where.claims):
                for found in (await api.get(path, labelSelector=ours))["items"]:
                    meta = found["metadata"]
                    name = f"{path.rpartition('/')[2]}/{meta['name']}"
                    left.append(name)
                    if "deletionTimestamp" not in meta:
                        await api.delete(f"{path}/{meta['name']}", uid=meta["uid"])
                    if name not in seen:
                        log.info("%s is deleted", name)
                        seen.add(name)
                if left:  # a claim is deleted after the pods that use it
                    break
        except ApiError as error:
            log.warning("%s", error.message)
            left = left or ["anything"]
        if left:
            await asyncio.sleep(_EVERY)
    return len(seen)


async def _main(namespace: str, instance: str) -> None:
    api = await KubeApi.connect()
    try:
        log.info("%d pods and claims are gone", await clear(api, namespace, instance))
    finally:
        await api.close()


def main() -> int:
    """Exit status: 0 when nothing is left, 1 otherwise."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    words = argparse.ArgumentParser(prog="python -m gpuspawner.fleet.clear", description=__doc__)
    words.add_argument("--namespace", required=True)
    words.add_argument("--instance", required=True, help="what the service has as GPUSPAWNER_INSTANCE")
    given = words.parse_args()
    try:
        asyncio.run(_main(given.namespace, given.instance))
    except GPUSpawnerError as error:
        print(error.message, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
