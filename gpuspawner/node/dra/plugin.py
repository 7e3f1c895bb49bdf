"""The two sockets by which a kubelet finds and asks its plugin."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from gpuspawner import kubernetes_names as names
from gpuspawner.errors import GPUSpawnerError
from gpuspawner.node.dra import cdi, wire
from gpuspawner.node.dra.shares import Shares

log = logging.getLogger(__name__)


class Plugin:
    """Serves a kubelet whose folder is `kubelet`, under the same path here and there."""

    def __init__(self, shares: Shares, kubelet: Path) -> None:
        self._shares = shares
        self._socket = kubelet / "plugins" / names.DRIVER / "dra.sock"
        self._registration = kubelet / "plugins_registry" / f"{names.DRIVER}-reg.sock"
        self._servers: list[Any] = []
        #: set once a kubelet has said that it knows us
        self.registered = asyncio.Event()

    async def start(self) -> None:
        """Listen. The kubelet sees the second socket, and asks on it where the first one is."""
        prepare = _method(self._prepare, wire.PrepareRequest)
        unprepare = _method(self._unprepare, wire.UnprepareRequest)
        methods = {"NodePrepareResources": prepare, "NodeUnprepareResources": unprepare}
        await self._serve(self._socket, wire.DRA_SERVICE, methods)
        methods = {
            "GetInfo": _method(self._info, wire.InfoRequest),
            "NotifyRegistrationStatus": _method(self._notified, wire.RegistrationStatus),
        }
        await self._serve(self._registration, wire.REGISTRATION_SERVICE, methods)

    async def stop(self, grace: float = 5.0) -> None:
        """Take no more calls, and let those that run end within `grace` seconds."""
        for server in reversed(self._servers):
            await server.stop(grace)
        _remove(self._registration, self._socket)

    async def _serve(self, socket: Path, service: str, methods: dict[str, Any]) -> None:
        # Listen elsewhere and rename: who sees the socket can connect.
        hidden = _hidden(socket)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
        server.add_insecure_port(f"unix:{hidden}")
        await server.start()
        hidden.chmod(0o600)
        hidden.rename(socket)
        self._servers.append(server)

    async def _info(self, request: Any) -> Any:
        return wire.PluginInfo(
            type=wire.PLUGIN_TYPE,
            name=names.DRIVER,
            endpoint=str(self._socket),
            supported_versions=[wire.DRA_VERSION],
        )

    async def _notified(self, status: Any) -> Any:
        if status.plugin_registered:
            log.info("the kubelet knows this plugin")
            self.registered.set()
        else:
            log.error("the kubelet refuses this plugin: %s", status.error)
        return wire.RegistrationStatusResponse()

    async def _prepare(self, request: Any) -> Any:
        """Every claim gets an answer, each of its own."""
        answers = await asyncio.gather(*(self._prepare_one(claim) for claim in request.claims))
        return wire.PrepareResponse(claims=dict(zip((claim.uid for claim in request.claims), answers, strict=True)))

    async def _prepare_one(self, claim: Any) -> Any:
        try:
            prepared = await self._shares.prepare(claim.namespace, claim.name, claim.uid)
        except GPUSpawnerError as error:
            log.warning("claim %s/%s is refused: %s", claim.namespace, claim.name, error.message)
            return wire.PrepareOne(error=f"{error.code}: {error.message}")
        except Exception as error:
            log.exception("claim %s/%s could not be prepared", claim.namespace, claim.name)
            return wire.PrepareOne(error=f"The node agent failed: {error!r}")
        devices = [
            wire.Device(
                request_names=[part.request],
                pool_name=part.pool,
                device_name=part.device,
                cdi_device_ids=[device],
                share_id=part.share_id,
            )
            for part, device in zip(prepared.parts, cdi.device_ids(prepared), strict=True)
        ]
        return wire.PrepareOne(devices=devices)

    async def _unprepare(self, request: Any) -> Any:
        answers = await asyncio.gather(*(self._unprepare_one(claim) for claim in request.claims))
        return wire.UnprepareResponse(claims=dict(zip((claim.uid for claim in request.claims), answers, strict=True)))

    async def _unprepare_one(self, claim: Any) -> Any:
        try:
            await self._shares.unprepare(claim.uid)
        except Exception as error:
            log.exception("claim %s/%s could not be ended", claim.namespace, claim.name)
            return wire.UnprepareOne(error=f"The node agent failed: {error!r}")
        return wire.UnprepareOne()


def _hidden(socket: Path) -> Path:
    """A free name beside a socket, from which another's (of one that was killed) is taken away."""
    socket.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    hidden = socket.with_name(f".{socket.name}.{os.getpid()}")
    _remove(socket, hidden)
    return hidden


def _remove(*sockets: Path) -> None:
    for socket in sockets:
        socket.unlink(missing_ok=True)


def _method(do: Callable[[Any], Awaitable[Any]], request: Any) -> Any:
    async def handle(given: Any, context: Any) -> Any:
        return await do(given)

    return grpc.unary_unary_rpc_method_handler(
        handle, request_deserializer=request.FromString, response_serializer=lambda answer: answer.SerializeToString()
    )
