"""The stall of a checkpoint: how long the thread that trains is stopped for it, the waiting before the next update
included; the median of several. Printed beside it: what the steps take longer while it is written."""

from __future__ import annotations

import statistics
import warnings
from pathlib import Path

import torch.distributed.checkpoint as dcp
from gpuspawner_runtime import autocheckpoint

from tests.bench.runtime_checkpoints import Training, place, save_and_sync, seconds

_SAVES = 7
warnings.filterwarnings("ignore")


def ours(training: Training) -> tuple[float, float]:
    """Seconds of stall of a save, and seconds that the steps from a save to the end of its writing take longer."""
    stalls, longer = [], []
    with autocheckpoint("bench", model=training.model, optimizer=training.optimizer, every=600) as saver:
        for _ in range(3):
            training.step()
            saver.step()
        for number in range(_SAVES + 1):
            quiet = []
            for _ in range(4):
                quiet.append(seconds(training.step))
                saver.step()
            before = saver.stall_seconds
            saver.save()
            added = saver.stall_seconds - before
            while True:
                took = seconds(training.step)
                saver.step()
                added += took - statistics.median(quiet)
                if saver.idle:
                    break
            if number:  # the first one makes the memory
                stalls.append(saver.stall_seconds - before)
                longer.append(added)
    return statistics.median(stalls), statistics.median(longer)


def plain(training: Training, folder: Path) -> float:
    """Seconds of torch.save and fsync."""
    return statistics.median(seconds(lambda: save_and_sync(training.state, folder / "plain.pt")) for _ in range(3))


def dcp_async(training: Training, folder: Path) -> float:
    """Seconds until async_save gives the training back."""
    found = []
    for number in range(4):
        handle = None

        def save(number: int = number) -> None:
            nonlocal handle
            handle = dcp.async_save(training.state, checkpoint_id=str(folder / f"dcp-{number}"), no_dist=True)

        took = seconds(save)
        training.step()
        assert handle is not None
        getattr(handle, "upload_completion", handle).result()
        if number:
            found.append(took)
    return statistics.median(found)


def main() -> None:
    """Prints the stall in ms."""
    with place() as folder:
        training = Training()
        print(f"{training.bytes / 1e6:.0f} MB of state; a step takes {1000 * seconds(training.step):.0f} ms")
        stall, longer = ours(training)
        print(f"torch.save + fsync: {1000 * plain(training, folder):.0f} ms")
        print(f"DCP async_save: {1000 * dcp_async(training, folder):.0f} ms")
        print(f"ours: {1000 * stall:.1f} ms; all steps until it is written take {1000 * longer:.0f} ms longer together")
    print(f"{1000 * stall:.2f} ms")


if __name__ == "__main__":
    main()
