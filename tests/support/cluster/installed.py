"""The hub that the chart has put on a cluster, for the users of `support.hub`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from ..common import until
from ..stack import Browser
from .cluster import Cluster


class Installed:
    """A release, as `support.hub.Hub` speaks to it: the public address is the proxy's within the cluster, which
    leads there from here as well. `name` is what the names of its objects begin with."""

    def __init__(self, cluster: Cluster, namespace: str, name: str) -> None:
        self.cluster, self.namespace, self.name = cluster, namespace, name

    def address(self, part: str, port: int) -> str:
        """Where a service of it is."""
        found = self.cluster.api.get("Service", f"{self.name}-{part}", self.namespace)
        return f"http://{found['spec']['clusterIP']}:{port}"

    @property
    def url(self) -> str:
        """Where people go."""
        return self.address("proxy", 80)

    def secret(self, name: str) -> str:
        """One of its secrets."""
        found = self.cluster.api.get("Secret", f"{self.name}-secrets", self.namespace)["data"][name]
        return base64.b64decode(found).decode()

    @property
    def user_password(self) -> str:
        """The password that all its users share."""
        return self.secret("user_password")

    def service(self) -> httpx.Client:
        """A client of the service that asks as the hub."""
        return httpx.Client(
            base_url=f"{self.address('service', 8003)}/services/gpuspawner/api/v1",
            headers={"Authorization": f"Bearer {self.secret('service_token')}"},
            timeout=60,
        )

    @contextmanager
    def browser(self, user: str | None = None) -> Iterator[Browser]:
        """A client of the public address; signed in if a user is named."""
        with Browser(base_url=self.url, timeout=60) as client:
            if user is not None:
                # a hub that was just replaced is ready a moment before all of the cluster's network knows
                until(lambda: client.get("/hub/login").status_code == 200, 60, "the hub's login page")
                client.sign_in(user, self.secret("admin_password") if user == "admin" else self.user_password)
            yield client

    def token(self, user: str, **options: Any) -> str:
        """An API token of a user, as their token page makes it."""
        with self.browser(user) as client:
            client.get("/hub/home")
            headers = {"X-XSRFToken": client.xsrf("/hub/"), "Referer": f"{self.url}/hub/token"}
            answer = client.post(f"/hub/api/users/{user}/tokens", json=options, headers=headers)
            assert answer.status_code == 201, answer.text
            return str(answer.json()["token"])

    def pods(self) -> dict[str, dict[str, Any]]:
        """Its own pods by their part: hub, proxy, service, agent, simulation."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component"
        found = self.cluster.api.list("Pod", self.namespace, labelSelector=selector)
        return {
            each["metadata"]["labels"]["app.kubernetes.io/component"]: each
            for each in found
            if "deletionTimestamp" not in each["metadata"]
        }

    def why(self) -> str:
        """How its pods are and what they said last."""
        words = []
        for pod in self.cluster.api.list("Pod", self.namespace):
            name, status = pod["metadata"]["name"], pod["status"]
            words.append(f"{name}: {json.dumps(status.get('containerStatuses') or status.get('conditions'))}")
            try:
                words.append(self.cluster.kubectl("--namespace", self.namespace, "logs", "--tail=25", name))
            except AssertionError as error:
                words.append(str(error))
        words += [
            f"{each['involvedObject']['name']}: {each.get('message')}"
            for each in self.cluster.api.list("Event", self.namespace)
        ]
        return "\n".join(words)
