"""What a context takes on each card: measured when the agent meets the card, or where that fails as it was before."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Collection

from gpuspawner.node.limits import launch, measure
from gpuspawner.node.records import Records

log = logging.getLogger(__name__)


class Contexts:
    """`bytes`: by card; of one that is missing it is not known, and nothing is charged for a context there."""

    def __init__(self, records: Records, files: launch.DriverFiles) -> None:
        self._records = records
        self._files = files
        self.bytes = records.context_bytes()
        self.measure()

    def measure(self, only: Collection[str] = ()) -> None:
        """Measure now, on the cards `only` or on all. A card that is too full keeps what was measured before."""
        try:
            measured = measure.context_bytes(self._files, only)
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("What a context takes could not be measured: %s", error)
            return
        self._records.keep_context_bytes(measured)
        self.bytes.update(measured)
