"""A plain client of an API server, made from a kubeconfig."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import yaml

Object = dict[str, Any]
_KINDS = {
    "Namespace": ("v1", "namespaces", False),
    "Node": ("v1", "nodes", False),
    "Pod": ("v1", "pods", True),
    "PersistentVolume": ("v1", "persistentvolumes", False),
    "Secret": ("v1", "secrets", True),
    "ConfigMap": ("v1", "configmaps", True),
    "Service": ("v1", "services", True),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "Event": ("v1", "events", True),
    "DeviceClass": ("resource.k8s.io/v1", "deviceclasses", False),
    "ResourceSlice": ("resource.k8s.io/v1", "resourceslices", False),
    "ResourceClaim": ("resource.k8s.io/v1", "resourceclaims", True),
    "ResourceClaimTemplate": ("resource.k8s.io/v1", "resourceclaimtemplates", True),
    "DaemonSet": ("apps/v1", "daemonsets", True),
    "Deployment": ("apps/v1", "deployments", True),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Role": ("rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings", True),
    "PriorityClass": ("scheduling.k8s.io/v1", "priorityclasses", False),
}


class Api:
    """Objects by kind. Answers with an error raise httpx.HTTPStatusError with the server's words."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        config = yaml.safe_load(kubeconfig.read_text())
        context = next(c["context"] for c in config["contexts"] if c["name"] == config["current-context"])
        cluster = next(c["cluster"] for c in config["clusters"] if c["name"] == context["cluster"])
        user = next(u["user"] for u in config["users"] if u["name"] == context["user"])
        ca = _content(cluster, "certificate-authority", kubeconfig)
        self.server: str = cluster["server"]
        tls = ssl.create_default_context(cadata=ca.decode() if ca else None)
        # OpenSSL 3 asks for more of an authority's certificate than Kubernetes distributions put in theirs.
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        certificate, key = (_content(user, f"client-{kind}", kubeconfig) for kind in ("certificate", "key"))
        if certificate and key:
            with tempfile.TemporaryDirectory() as folder:
                pair = Path(folder) / "pair.pem"
                pair.touch(mode=0o600)
                pair.write_bytes(certificate + b"\n" + key)
                tls.load_cert_chain(pair)
        self.tls = tls
        token = user.get("token")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(base_url=self.server, verify=tls, headers=headers, timeout=60.0, trust_env=False)

    def close(self) -> None:
        """Close its connections."""
        self.http.close()

    def get(self, kind: str, name: str, namespace: str = "default") -> Object:
        """One object."""
        return self._ask("GET", f"{_path(kind, namespace)}/{name}")

    def find(self, kind: str, name: str, namespace: str = "default") -> Object | None:
        """One object, or None where there is none of that name."""
        answer = self.http.get(f"{_path(kind, namespace)}/{name}")
        return None if answer.status_code == 404 else _checked(answer)

    def list(self, kind: str, namespace: str | None = None, **query: str) -> list[Object]:
        """All objects of a kind, in a namespace or everywhere."""
        found: list[Object] = self._ask("GET", _path(kind, namespace), params=query)["items"]
        return found

    def create(self, content: Object) -> Object:
        """Create what a manifest says."""
        return self._ask("POST", _path_of(content), json=content)

    def replace(self, content: Object, status: bool = False) -> Object:
        """Replace an object, or its status alone."""
        path = f"{_path_of(content)}/{content['metadata']['name']}{'/status' if status else ''}"
        return self._ask("PUT", path, json=content)

    def patch(self, kind: str, name: str, change: Object, namespace: str = "default", status: bool = False) -> Object:
        """Merge a change into an object."""
        headers = {"Content-Type": "application/merge-patch+json"}
        path = f"{_path(kind, namespace)}/{name}{'/status' if status else ''}"
        return self._ask("PATCH", path, content=json.dumps(change), headers=headers)

    def delete(self, kind: str, name: str, namespace: str = "default", grace: int | None = None) -> None:
        """Delete an object; one that is not there is no error."""
        query = {} if grace is None else {"gracePeriodSeconds": str(grace)}
        answer = self.http.delete(f"{_path(kind, namespace)}/{name}", params=query)
        if answer.status_code != 404:
            _checked(answer)

    def watch(self, kind: str, namespace: str | None = None, **query: str) -> Iterator[tuple[str, Object]]:
        """Changes of a kind, each with its type (ADDED, MODIFIED, DELETED), until the server ends the watch."""
        params = {"watch": "true", **query}
        with self.http.stream("GET", _path(kind, namespace), params=params) as answer:
            for line in answer.iter_lines():
                event = json.loads(line)
                yield event["type"], event["object"]

    def ready(self) -> bool:
        """Whether the server answers and says that it is ready."""
        try:
            return self.http.get("/readyz", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def _ask(self, method: str, path: str, **how: Any) -> Object:
        return _checked(self.http.request(method, path, **how))


def _checked(answer: httpx.Response) -> Object:
    if answer.is_error:
        said = answer.text[:2000]
        raise httpx.HTTPStatusError(f"{answer.status_code}: {said}", request=answer.request, response=answer)
    content: Object = answer.json()
    return content


def _path(kind: str, namespace: str | None) -> str:
    version, plural, namespaced = _KINDS[kind]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespaced and namespace else f"{root}/{plural}"


def _path_of(content: Object) -> str:
    return _path(content["kind"], content["metadata"].get("namespace", "default"))


def _content(place: Object, name: str, kubeconfig: Path) -> bytes | None:
    if f"{name}-data" in place:
        return base64.b64decode(place[f"{name}-data"])
    return (kubeconfig.parent / Path(place[name]).expanduser()).read_bytes() if name in place else None
