"""The programs that make up one installation: how each is started and how it shows that it answers."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import gpuspawner
from gpuspawner.errors import Unavailable
from gpuspawner.idle import IdleTimes
from gpuspawner.node.cards import CardsPlan
from gpuspawner.simulation.control import control_socket
from gpuspawner.state import Settings

ROOT = Path(gpuspawner.__file__).resolve().parent.parent
SIMULATION = "simulation"
_LONGEST_SOCKET_PATH = 107

# What names a place or a secret of the one who types `gpuspawner up` and must not steer the parts.
_NOT_PASSED_ON = ("JUPYTERHUB_", "JPY_", "CONFIGPROXY_", "LD_LIBRARY_PATH", "LD_PRELOAD", "JUPYTER_")


@dataclass(frozen=True)
class Part:
    """One program. It is ready when `url` answers (any status below 500), or when `socket` takes connections."""

    name: str
    argv: list[str]
    env: dict[str, str]
    url: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    socket: Path | None = None
    #: Whether it outlives the supervisor while sessions need it.
    stays: bool = False


def parts(settings: Settings, plan: CardsPlan, environ: Mapping[str, str] = os.environ) -> list[Part]:
    """All parts, in the order in which they are started. Raises Unavailable where set-up has not been run."""
    env = {key: value for key, value in environ.items() if not key.startswith(_NOT_PASSED_ON)}
    env |= {
        "GPUSPAWNER_STATE": str(settings.state),
        "GPUSPAWNER_PORT": str(settings.port),
        "GPUSPAWNER_BASE_URL": settings.base_url,
        "PYTHONUNBUFFERED": "1",
    }
    found = [simulation(settings, plan, env)] if plan.simulated_spec else []
    found += [_proxy(settings, env), _service(settings, plan, env), _hub(settings, env)]
    times = IdleTimes.from_env(environ)
    if times.cull is not None:
        found.append(_culler(settings, times.cull, times.check, env))
    return found


def simulation_socket(settings: Settings) -> Path:
    """Where the daemon that plays the simulated cards listens."""
    return settings.state / "run" / "simulation.sock"


def simulation(settings: Settings, plan: CardsPlan, env: dict[str, str]) -> Part:
    """The simulated cards."""
    daemon = simulation_folder() / "gpuspawner-simd"
    if not daemon.is_file():
        raise Unavailable("The simulated cards are not built: run `make -C gpuspawner/simulation`.")
    socket = simulation_socket(settings)
    if len(os.fsencode(control_socket(socket))) > _LONGEST_SOCKET_PATH:
        raise Unavailable(f"The path {socket} is too long for a socket: choose a shorter GPUSPAWNER_STATE.")
    argv = [str(daemon), "--socket", str(socket), "--cards", plan.simulated_spec or ""]
    if plan.timed:
        argv.append("--timed")
    return Part(SIMULATION, argv, env, socket=socket, stays=True)


def simulation_folder() -> Path:
    """Where the daemon and its client libraries are built."""
    return Path(gpuspawner.__file__).resolve().parent / "simulation" / "bin"


def _proxy(settings: Settings, env: dict[str, str]) -> Part:
    local = ROOT / "node_modules" / ".bin" / "configurable-http-proxy"
    program = str(local) if local.exists() else shutil.which("configurable-http-proxy")
    if program is None:
        raise Unavailable("configurable-http-proxy was not found: run `make setup`, or install it with npm.")
    token = settings.secret("proxy_token")
    argv = [
        program,
        *("--ip", "127.0.0.1", "--port", str(settings.port)),
        *("--api-ip", "127.0.0.1", "--api-port", str(settings.proxy_api_port)),
        *("--default-target", f"http://127.0.0.1:{settings.hub_port}"),
        *("--error-target", f"http://127.0.0.1:{settings.hub_port}{settings.base_url}hub/error"),
    ]
    return Part(
        "proxy",
        argv,
        env | {"CONFIGPROXY_AUTH_TOKEN": token},
        url=f"http://127.0.0.1:{settings.proxy_api_port}/api/routes",
        headers={"Authorization": f"token {token}"},
    )


def _service(settings: Settings, plan: CardsPlan, env: dict[str, str]) -> Part:
    env = env | plan.env
    if plan.simulated_spec:
        env |= {
            "GPUSPAWNER_SIM_SOCKET": str(simulation_socket(settings)),
            "LD_LIBRARY_PATH": str(simulation_folder()),
        }
    argv = [sys.executable, "-m", "gpuspawner.service"]
    return Part("service", argv, env, url=f"{settings.service_api}/health")


def _hub(settings: Settings, env: dict[str, str]) -> Part:
    config = os.environ.get("GPUSPAWNER_HUB_CONFIG") or str(ROOT / "jupyterhub_config.py")
    argv = [sys.executable, "-m", "jupyterhub", "--config", config]
    url = f"http://127.0.0.1:{settings.hub_port}{settings.base_url}hub/health"
    return Part("hub", argv, env, url=url)


def _culler(settings: Settings, timeout: float, every: float, env: dict[str, str]) -> Part:
    argv = [
        *(sys.executable, "-m", "jupyterhub_idle_culler"),
        f"--config={Path(gpuspawner.__file__).parent / 'spawner' / 'culler_config.py'}",
        f"--url={settings.hub_api}",
        f"--timeout={max(1, round(timeout))}",
        f"--cull-every={max(1, round(every))}",
    ]
    return Part("culler", argv, env | {"JUPYTERHUB_API_TOKEN": settings.secret("culler_token")})
