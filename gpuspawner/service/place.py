"""Where the service runs, and over which fleet: by itself on one machine, or in a cluster beside a hub."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpuspawner.errors import InvalidInput
from gpuspawner.fleet.base import Fleet
from gpuspawner.state import Settings

FLEETS = ("machine", "kubernetes")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z", re.ASCII)
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class Place:
    """`host`: where the service listens. `hub_api`: of JupyterHub. `namespace` and `instance`: which claims and
    pods are this installation's, on a cluster. `kubeconfig`: None in a pod, which has a service account."""

    fleet: str
    host: str
    hub_api: str
    token_file: Path
    namespace: str = ""
    instance: str = ""
    kubeconfig: str | None = None

    @classmethod
    def from_env(cls, settings: Settings, env: Mapping[str, str] = os.environ) -> Place:
        """From GPUSPAWNER_FLEET, _SERVICE_HOST, _HUB_API, _SERVICE_TOKEN_FILE, _NAMESPACE, _INSTANCE and KUBECONFIG.
        Raises InvalidInput."""
        fleet = env.get("GPUSPAWNER_FLEET") or FLEETS[0]
        if fleet not in FLEETS:
            raise _not_allowed("GPUSPAWNER_FLEET", fleet, " or ".join(FLEETS))
        host = env.get("GPUSPAWNER_SERVICE_HOST") or "127.0.0.1"
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise _not_allowed("GPUSPAWNER_SERVICE_HOST", host, "an IP address of this machine") from None
        hub_api = (env.get("GPUSPAWNER_HUB_API") or settings.hub_api).rstrip("/")
        if urlsplit(hub_api).scheme not in ("http", "https") or not urlsplit(hub_api).hostname:
            raise _not_allowed("GPUSPAWNER_HUB_API", hub_api, "http://HOST:PORT/hub/api")
        token_file = Path(env.get("GPUSPAWNER_SERVICE_TOKEN_FILE") or settings.state / "secrets" / "service_token")
        if fleet == "machine":
            return cls(fleet, host, hub_api, token_file)
        return cls(
            fleet,
            host,
            hub_api,
            token_file,
            namespace=_name("GPUSPAWNER_NAMESPACE", env.get("GPUSPAWNER_NAMESPACE") or _namespace_of_pod()),
            instance=_name("GPUSPAWNER_INSTANCE", env.get("GPUSPAWNER_INSTANCE") or "gpuspawner"),
            kubeconfig=env.get("KUBECONFIG") or None,
        )

    @property
    def token(self) -> str:
        """The service's token at the hub. Raises OSError."""
        return self.token_file.read_text(encoding="ascii").strip()

    def open_fleet(self, settings: Settings) -> Fleet:
        """The fleet. Raises GPUSpawnerError."""
        if self.fleet == "machine":
            from gpuspawner.fleet.local import LocalFleet

            return LocalFleet(settings.state)
        from gpuspawner.fleet.kubernetes import KubernetesFleet
        from gpuspawner.kubernetes_api import KubeApi

        return KubernetesFleet(lambda: KubeApi.connect(self.kubeconfig), self.namespace, self.instance)


def _namespace_of_pod() -> str:
    try:
        return _OWN_NAMESPACE.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _name(variable: str, given: str) -> str:
    if not _NAME.match(given):
        raise _not_allowed(variable, given, "lower-case letters, digits and dashes, at most 63")
    return given


def _not_allowed(variable: str, given: str, allowed: str) -> InvalidInput:
    return InvalidInput(
        f"{variable}: {given[:80]!r} is not allowed. Allowed: {allowed}.", field=variable, given=given, allowed=allowed
    )
