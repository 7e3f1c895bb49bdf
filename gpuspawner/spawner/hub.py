"""What a hub is told so that it, its GPU servers and the service know each other: scopes, roles, the service."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jupyterhub

from gpuspawner.spawner.templates import TEMPLATES

#: JupyterHub's `custom_scopes`.
SCOPES: dict[str, Any] = {
    "custom:gpuspawner:read": {"description": "See GPU sessions: their share, cards, memory and price."},
    "custom:gpuspawner:resize": {"description": "Change the share of a running GPU session."},
    "custom:gpuspawner:activity": {"description": "Say how long nothing was done in a GPU session."},
    "custom:gpuspawner:admin": {
        "description": "Everything with every GPU session, ending it included.",
        "subscopes": ["custom:gpuspawner:read", "custom:gpuspawner:resize", "custom:gpuspawner:activity"],
    },
}
SERVICE = "gpuspawner"
CULLER = "gpuspawner-culler"


def service(url: str, token: str) -> dict[str, Any]:
    """The service among JupyterHub's `services`. `url`: where the proxy finds it."""
    return {
        "name": SERVICE,
        "url": url,
        "api_token": token,
        "display": True,
        "oauth_no_confirm": True,
        "oauth_client_allowed_scopes": [
            "custom:gpuspawner:read",
            "custom:gpuspawner:resize",
            "custom:gpuspawner:admin",
        ],
    }


def roles(admins: Collection[str], *, culled: bool = False, parking: bool = False) -> list[dict[str, Any]]:
    """JupyterHub's `load_roles`. `admins`: users who may do everything with every session. `culled`: whether there is
    a service that stops idle servers. `parking`: whether the service parks servers for more urgent work."""
    found: list[dict[str, Any]] = [
        {
            "name": "user",
            "description": "Standard user privileges",
            "scopes": [
                "self",
                f"access:services!service={SERVICE}",  # the page about cards
                "custom:gpuspawner:read!user",
                "custom:gpuspawner:resize!user",
                "custom:gpuspawner:activity!user",  # a server's token has no scope that its user has not
            ],
        },
        {
            "name": "server",
            "description": "Post activity, and see and resize its own GPU session",
            "scopes": [
                "users:activity!user",
                "access:servers!server",
                "custom:gpuspawner:read!server",
                "custom:gpuspawner:resize!server",
                "custom:gpuspawner:activity!server",
            ],
        },
        {
            "name": "gpu-admin",
            "description": "Everything with GPU sessions",
            "scopes": ["custom:gpuspawner:admin"],
            "users": list(admins),
        },
        {
            "name": "gpuspawner-service",
            "description": "Learn whose token it is, and by what people sign in",
            "scopes": ["read:users", "read:roles:users", "read:servers", "read:hub"],
            "services": [SERVICE],
        },
    ]
    if parking:
        # JupyterHub 5 has no scope for starting alone
        start = "start:servers" if jupyterhub.version_info[0] >= 6 else "servers"
        found.append(
            {
                "name": "gpuspawner-parking",
                "description": "Stop servers that are saved for more urgent work, and start them again",
                "scopes": ["delete:servers", start],
                "services": [SERVICE],
            }
        )
    if culled:
        found.append(
            {
                "name": CULLER,
                "description": "See which servers run, hear whether they are idle, and stop them",
                "scopes": [
                    "list:users",
                    "read:servers",
                    "delete:servers",
                    "custom:gpuspawner:read",
                    "custom:gpuspawner:activity",
                ],
                "services": [CULLER],
            }
        )
    return found


def attach(c: Any, service_url: str, token_file: str, admins: Collection[str] = (), *, culled: bool = False) -> None:
    """Make a hub on Kubernetes one whose servers have shares of cards: its spawner, its pages, its scopes and roles.

    `c`: its configuration. `service_url`: the service's REST API. `token_file`: holds the token of the hub's service
    `gpuspawner`, which the hub has among its `services` (`service` here).
    """
    c.JupyterHub.spawner_class = "kube-gpu"
    # who waits in the queue is a start under way for the hub: not so many that nobody else could start
    if "concurrent_spawn_limit" not in c.JupyterHub:
        c.JupyterHub.concurrent_spawn_limit = 0
    c.JupyterHub.template_paths.insert(0, str(TEMPLATES))
    c.JupyterHub.custom_scopes.update(SCOPES)
    c.JupyterHub.load_roles.extend(roles(admins, culled=culled))
    c.GPUKubeSpawner.service_url = service_url
    c.GPUKubeSpawner.service_token_file = token_file
