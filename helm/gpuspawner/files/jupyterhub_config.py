"""JupyterHub as the chart runs it. What differs from one installation to the next is in values.json beside this file,
secrets are in the folder beside it."""

import json
import sys
from pathlib import Path

from gpuspawner.idle import IdleTimes
from gpuspawner.spawner import culling, hub

c = get_config()

HERE = Path("/etc/gpuspawner")
values = json.loads((HERE / "values.json").read_text())
session = values["session"]
base_url = values["base_url"]


def secret(name: str) -> str:
    return (HERE / "secrets" / name).read_text().strip()


# -- the hub: proxy, service and servers are pods of their own, so that none of them takes another along
c.JupyterHub.bind_url = f"http://:8000{base_url}"
c.JupyterHub.hub_bind_url = "http://:8081"
c.JupyterHub.hub_connect_url = values["hub_url"]
c.JupyterHub.db_url = values["database_url"] or "sqlite:////srv/jupyterhub/jupyterhub.sqlite"
c.JupyterHub.cookie_secret = bytes.fromhex(secret("cookie_secret"))
c.JupyterHub.pid_file = ""
c.JupyterHub.cleanup_servers = False
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = values["proxy_api_url"]
c.ConfigurableHTTPProxy.auth_token = secret("proxy_token")
# with each look at activity the hub also gives a restarted proxy its routes back
c.JupyterHub.last_activity_interval = 5
c.JupyterHub.allow_named_servers = True
if public := values["public_url"]:
    c.JupyterHub.public_url = public
    if public.startswith("https:"):
        # told outright: configurable-http-proxy adds its own http to X-Forwarded-Proto, and tornado reads the last
        c.JupyterHub.tornado_settings = {"cookie_options": {"secure": True}, "xsrf_cookie_kwargs": {"secure": True}}

# -- who may sign in, unless `hub.config` says otherwise
c.Authenticator.admin_users = set(values["admins"])
if "authenticator_class" not in values["config"].get("JupyterHub", {}):
    c.JupyterHub.authenticator_class = "shared-password"
    c.SharedPasswordAuthenticator.user_password = secret("user_password")
    c.SharedPasswordAuthenticator.admin_password = secret("admin_password")
    c.Authenticator.allow_all = True

# -- servers
c.KubeSpawner.namespace = values["namespace"]
c.KubeSpawner.image = values["image"]
c.KubeSpawner.image_pull_policy = values["pull_policy"]
c.KubeSpawner.image_pull_secrets = values["pull_secrets"]
# two hubs may share a namespace
c.KubeSpawner.pod_name_template = f"{values['instance']}-{{user_server}}"
c.KubeSpawner.uid = 1000
c.KubeSpawner.gid = 1000
c.KubeSpawner.fs_gid = 1000
c.KubeSpawner.container_security_context = {"capabilities": {"drop": ["ALL"]}}
c.KubeSpawner.pod_security_context = {
    "runAsNonRoot": True,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
c.KubeSpawner.automount_service_account_token = False
# whatever moves pods about would end the work in them
c.KubeSpawner.extra_annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
if values["priority_class"]:
    c.KubeSpawner.priority_class_name = values["priority_class"]
c.KubeSpawner.node_selector = session["nodeSelector"]
c.KubeSpawner.tolerations = session["tolerations"]
c.KubeSpawner.profile_list = session["profiles"]
c.KubeSpawner.environment = dict(session["env"])
if values["default_url"]:
    c.KubeSpawner.default_url = values["default_url"]
for what, trait in (("cpu", "cpu"), ("memory", "mem")):
    for kind in ("guarantee", "limit"):
        if session[what].get(kind) is not None:  # Helm leaves out what is null
            setattr(c.KubeSpawner, f"{trait}_{kind}", session[what][kind])
if session["storage"]["type"] == "volume":
    c.KubeSpawner.storage_pvc_ensure = True
    c.KubeSpawner.pvc_name_template = f"{values['instance']}-{{user_server}}"
    c.KubeSpawner.storage_capacity = session["storage"]["size"]
    c.KubeSpawner.storage_access_modes = ["ReadWriteOnce"]
    if session["storage"]["storageClass"]:
        c.KubeSpawner.storage_class = session["storage"]["storageClass"].removeprefix("-")
    c.KubeSpawner.volumes = [{"name": "home", "persistentVolumeClaim": {"claimName": "{pvc_name}"}}]
else:
    c.KubeSpawner.volumes = [{"name": "home", "emptyDir": {}}]
c.KubeSpawner.volume_mounts = [{"name": "home", "mountPath": "/home/jovyan"}]
c.Spawner.start_timeout = session["startTimeout"]
c.Spawner.http_timeout = session["httpTimeout"]
c.Spawner.poll_interval = 5
c.GPUKubeSpawner.default_share = session["defaultShare"]
c.GPUKubeSpawner.offer_no_card = session["offerNoCard"]

# -- the service and who may do what with it
idle = IdleTimes.from_env()
c.JupyterHub.services = [
    hub.service(values["service"].partition(f"{base_url}services/")[0], secret("service_token")),
    {"name": "metrics", "api_token": secret("metrics_token"), "display": False},
]
if idle.on:  # servers say how long nothing was done in them
    c.KubeSpawner.environment["GPUSPAWNER_ACTIVITY_SECONDS"] = f"{idle.check:g}"
if idle.cull is not None:
    c.JupyterHub.services.append(
        {
            "name": hub.CULLER,
            "api_token": secret("culler_token"),
            "display": False,
            "environment": {"GPUSPAWNER_SERVICE_URL": values["service"]},
            "command": [
                *(
                    sys.executable,
                    "-m",
                    "jupyterhub_idle_culler",
                    f"--config={Path(culling.__file__).with_name('culler_config.py')}",
                ),
                *(f"--timeout={max(1, round(idle.cull))}", f"--cull-every={max(1, round(idle.check))}"),
            ],
        }
    )
c.JupyterHub.load_roles = [
    {
        "name": "metrics",
        "description": "Read the figures of hub and service",
        "scopes": ["read:metrics", "custom:gpuspawner:read"],
        "services": ["metrics"],
    }
]
hub.attach(
    c,
    values["service"],
    str(HERE / "secrets/service_token"),
    values["admins"],
    culled=idle.cull is not None,
)

# -- the installation's own settings, last
for section, traits in values["config"].items():
    for trait, value in traits.items():
        setattr(c[section], trait, value)
for name, text in sorted(values["extra_config"].items()):
    exec(compile(text, f"hub.extraConfig.{name}", "exec"))
