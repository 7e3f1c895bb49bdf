"""The Jupyter Server extension."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from jupyter_server.extension.application import ExtensionApp
from traitlets import Float, TraitError, Type, Unicode, default, validate

from .activity import ActivityReporter
from .checkpoints import RUNS, RunsFolder
from .detail import PanelDetail
from .handlers import HANDLERS
from .nvml import NVMLReader
from .preemption import PreemptionWatch
from .sampler import SCHEMA, SCHEMA_ID, SessionView, TelemetrySampler
from .service import ServiceClient

if TYPE_CHECKING:
    from jupyter_events import EventLogger
    from jupyter_server.serverapp import ServerApp


class GPUSpawnerLab(ExtensionApp):
    """Shows and resizes the GPU share of this server; does nothing in a server without one."""

    name = "gpuspawner_lab"
    load_other_extensions = True

    service_url = Unicode(
        help="Address of the gpuspawner service, up to and with /api/v1. Default: $GPUSPAWNER_SERVICE_URL.",
    ).tag(config=True)
    session = Unicode(help="Id of this server's session. Default: $GPUSPAWNER_SESSION.").tag(config=True)
    token = Unicode(
        help="Token to show to the service. Default: $JUPYTERHUB_API_TOKEN, which the hub gives each server.",
    ).tag(config=True)
    sample_seconds = Float(1.0, help="Seconds between telemetry samples, 0.2 to 60.").tag(config=True)
    activity_seconds = Float(
        help="Seconds between reports of how long nothing was done here, 0.1 to 3600; 0: none. "
        "Default: $GPUSPAWNER_ACTIVITY_SECONDS, which a hub that culls idle sessions sets.",
    ).tag(config=True)
    service_timeout = Float(15.0, help="Seconds to wait for the service, 0.2 to 60.").tag(config=True)
    runs_folder = Unicode(
        help="Folder with the state files of runs that save checkpoints. Default: below the home.",
    ).tag(config=True)
    client_class = Type(ServiceClient, help="Asks the service.").tag(config=True)
    reader_class = Type(NVMLReader, help="Reads the driver.").tag(config=True)

    @default("service_url")
    def _service_url(self) -> str:
        return os.environ.get("GPUSPAWNER_SERVICE_URL", "")

    @default("session")
    def _session(self) -> str:
        return os.environ.get("GPUSPAWNER_SESSION", "")

    @default("token")
    def _token(self) -> str:
        return os.environ.get("JUPYTERHUB_API_TOKEN", "")

    @default("runs_folder")
    def _runs_folder(self) -> str:
        return str(Path.home() / RUNS)

    @default("activity_seconds")
    def _activity_seconds(self) -> float:
        return float(os.environ.get("GPUSPAWNER_ACTIVITY_SECONDS", "0"))

    @validate("activity_seconds")
    def _reports(self, proposal: Any) -> float:
        value: float = proposal["value"]
        if value != 0 and not 0.1 <= value <= 3600:
            raise TraitError(f"activity_seconds must be 0 or from 0.1 to 3600 seconds, not {value!r}")
        return value

    @validate("sample_seconds", "service_timeout")
    def _between(self, proposal: Any) -> float:
        # Float takes NaN and infinity, which would stop or flood the telemetry.
        value: float = proposal["value"]
        if not (math.isfinite(value) and 0.2 <= value <= 60):
            raise TraitError(f"{proposal['trait'].name} must be from 0.2 to 60 seconds, not {value!r}")
        return value

    @property
    def configured(self) -> bool:
        """Whether this server was started with a GPU session."""
        return bool(self.service_url and self.session)

    def initialize_settings(self) -> None:
        """Make the parts; none of them touches driver or service before somebody asks."""
        if SCHEMA_ID not in self._events.schemas:
            self._events.register_event_schema(SCHEMA)
        self.client = self.client_class(self.service_url, self.token, self.session, self.service_timeout)
        self.view = SessionView(self.client)
        server = cast("ServerApp", self.serverapp)
        self.runs = RunsFolder(Path(self.runs_folder))
        self.detail = PanelDetail(server.kernel_manager, server.session_manager, self.runs)
        # The page learns by this that there is something to show.
        page = server.web_app.settings.setdefault("page_config_data", {})
        page["gpuspawnerSession"] = self.configured
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        own_cards = tuple(uuid for uuid in visible if uuid.startswith(("GPU-", "MIG-")))
        self.sampler = TelemetrySampler(
            self.reader_class(), self.view, self._emit, self.log, self.sample_seconds, self.detail, own_cards
        )
        self.activity: ActivityReporter | None = None
        if self.configured and self.activity_seconds:
            self._report_activity()
        self.preemption: PreemptionWatch | None = None
        notice = os.environ.get("GPUSPAWNER_PREEMPTION_FILE")
        if self.configured and notice:
            self._watch_for_notices(Path(notice))

    def _report_activity(self) -> None:
        server = cast("ServerApp", self.serverapp)
        self.activity = ActivityReporter(server, self.client.active, self.activity_seconds, self.log)
        server.io_loop.add_callback(self.activity.start)

    def _watch_for_notices(self, file: Path) -> None:
        server = cast("ServerApp", self.serverapp)
        base = os.environ.get("XDG_STATE_HOME")
        folder = (Path(base) if base else Path.home() / ".local/state") / "gpuspawner-runtime/parked"
        self.preemption = PreemptionWatch(server, self.runs, file, folder, self.client.answer, self.log)
        server.io_loop.add_callback(self.preemption.start)

    def initialize_handlers(self) -> None:
        """Add the endpoints."""
        self.handlers.extend(HANDLERS)

    async def stop_extension(self) -> None:
        """Stop sampling and reporting, and close the connections."""
        if self.activity is not None:
            await self.activity.stop()
        if self.preemption is not None:
            await self.preemption.stop()
        await self.sampler.stop()
        await self.client.close()

    @property
    def _events(self) -> EventLogger:
        return cast("EventLogger", cast("ServerApp", self.serverapp).event_logger)

    def _emit(self, data: dict[str, Any]) -> None:
        self._events.emit(schema_id=SCHEMA_ID, data=data)
