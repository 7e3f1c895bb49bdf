"""JupyterHub of `gpuspawner up` with servers as pods of the cluster that GPUSPAWNER_TEST_CLUSTER describes (JSON)."""

import json
import os
from pathlib import Path

from kubernetes_asyncio.config import kube_config

from gpuspawner.state import Settings

c = get_config()  # noqa: F821
load_subconfig(str(Path(__file__).parents[3] / "jupyterhub_config.py"))  # noqa: F821

settings = Settings.from_env()
given = json.loads(os.environ["GPUSPAWNER_TEST_CLUSTER"])
kube_config.KUBE_CONFIG_DEFAULT_LOCATION = given["kubeconfig"]  # the hub's own rights, not the service's
# Pods reach hub and service at the machine's address in the cluster's network, browsers the proxy at 127.0.0.1.
outside = given["outside"]
c.JupyterHub.hub_bind_url = f"http://0.0.0.0:{settings.hub_port}"
c.JupyterHub.hub_connect_url = f"http://{outside}:{settings.hub_port}"

c.JupyterHub.spawner_class = given.get("spawner", "kube-gpu")
c.KubeSpawner.namespace = given["namespace"]
c.KubeSpawner.image = given["image"]
c.KubeSpawner.image_pull_policy = "Never"
c.KubeSpawner.cmd = given["command"]
c.KubeSpawner.uid = 1000
c.KubeSpawner.gid = 1000
c.KubeSpawner.fs_gid = 1000
c.KubeSpawner.working_dir = "/home/jovyan"
c.KubeSpawner.storage_pvc_ensure = False
c.KubeSpawner.volumes = given["volumes"]
c.KubeSpawner.volume_mounts = given["mounts"]
c.KubeSpawner.environment = {"HOME": "/home/jovyan", "PATH": given["path"], "JUPYTER_PREFER_ENV_PATH": "1"}
c.KubeSpawner.delete_grace_period = 1
c.GPUKubeSpawner.service_url = f"http://{outside}:{settings.service_port}{settings.service_prefix}api/v1"
c.GPUKubeSpawner.service_token_file = str(settings.state / "secrets" / "service_token")
c.GPUKubeSpawner.service_socket = str(settings.service_socket)
