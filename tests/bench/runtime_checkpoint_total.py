"""From the save to a durable, published checkpoint, over torch.save and fsync of the same state, by turns."""

from __future__ import annotations

import statistics

from gpuspawner_runtime import autocheckpoint

from tests.bench.runtime_checkpoints import Training, place, save_and_sync, seconds

_ROUNDS = 7


def main() -> None:
    """Prints the ratio of the medians."""
    with place() as folder:
        training = Training()
        ours, plain = [], []
        with autocheckpoint("bench", model=training.model, optimizer=training.optimizer, every=600) as saver:
            saver.step()
            for number in range(_ROUNDS + 1):
                took = seconds(lambda: saver.save(wait=True))
                saver.wait()
                other = seconds(lambda: save_and_sync(training.state, folder / "plain.pt"))
                if number:
                    ours.append(took)
                    plain.append(other)
        print(f"{training.bytes / 1e6:.0f} MB: {statistics.median(ours):.2f} s and {statistics.median(plain):.2f} s")
    print(f"{statistics.median(ours) / statistics.median(plain):.3f} times")


if __name__ == "__main__":
    main()
