"""JupyterHub as `make up` runs it: one machine, SQLite, this machine's cards or simulated ones.

The supervisor (`gpuspawner up`) starts the proxy, the service and the hub with this file, and hands over where
things are in GPUSPAWNER_STATE, GPUSPAWNER_PORT and GPUSPAWNER_BASE_URL. A hub of your own can load the same pieces:

    c.JupyterHub.spawner_class = "local-gpu"
"""

from gpuspawner.idle import IdleTimes
from gpuspawner.spawner import hub
from gpuspawner.spawner.environments import OWN
from gpuspawner.spawner.templates import TEMPLATES
from gpuspawner.state import Settings, public_url

c = get_config()

settings = Settings.from_env()


def at(port: int, path: str = "") -> str:
    return f"http://127.0.0.1:{port}{path}"


# -- the hub: loopback only; proxy and service are its siblings, so that none of them takes another along
c.JupyterHub.bind_url = at(settings.port, settings.base_url)
if public := public_url(settings):
    c.JupyterHub.public_url = public
    if public.startswith("https:"):
        # told outright: configurable-http-proxy adds its own http to X-Forwarded-Proto, and tornado reads the last
        c.JupyterHub.tornado_settings = {"cookie_options": {"secure": True}, "xsrf_cookie_kwargs": {"secure": True}}
c.JupyterHub.hub_bind_url = at(settings.hub_port)
c.JupyterHub.hub_connect_url = at(settings.hub_port)
c.JupyterHub.db_url = f"sqlite:///{settings.state / 'hub' / 'jupyterhub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(settings.state / "secrets" / "cookie_secret")
c.JupyterHub.pid_file = ""
c.JupyterHub.cleanup_servers = False
c.JupyterHub.template_paths = [str(TEMPLATES)]
c.JupyterHub.proxy_class = "configurable-http-proxy"
c.ConfigurableHTTPProxy.should_start = False
c.ConfigurableHTTPProxy.api_url = at(settings.proxy_api_port)
c.ConfigurableHTTPProxy.auth_token = settings.secret("proxy_token")
# with each look at activity the hub also gives a restarted proxy its routes back
c.JupyterHub.last_activity_interval = 5

# -- who may sign in: anybody on this machine who knows the password that `make up` prints
c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = settings.secret("user_password")
c.SharedPasswordAuthenticator.admin_password = settings.secret("admin_password")
c.Authenticator.admin_users = {"admin"}
c.Authenticator.allow_all = True

# -- servers
c.JupyterHub.spawner_class = "local-gpu"
c.JupyterHub.allow_named_servers = True
c.LocalGPUSpawner.service_url = settings.service_api
c.LocalGPUSpawner.service_token_file = str(settings.state / "secrets" / "service_token")
c.LocalGPUSpawner.service_socket = str(settings.service_socket)
c.LocalGPUSpawner.closed_ports = list(settings.ports)
c.LocalGPUSpawner.server_log_dir = str(settings.state / "logs" / "servers")
c.LocalGPUSpawner.environment = {"GPUSPAWNER_SERVICE_URL": settings.service_api}
if settings.runtime is not None:  # `make runtime` has made it
    c.LocalGPUSpawner.environments = [
        {"name": OWN.name, "title": OWN.title, "description": OWN.description, "command": list(OWN.command)},
        {
            "name": "pytorch",
            "title": "PyTorch",
            "description": "JupyterLab with PyTorch and the runtime: trainings that go on where they were.",
            "prefix": str(settings.runtime),
        },
    ]
c.Spawner.http_timeout = 120
c.Spawner.start_timeout = 150  # the server's own time, and what comes before it
c.Spawner.poll_interval = 5
# who waits in the queue is a start under way for the hub: not so many that nobody else could start
c.JupyterHub.concurrent_spawn_limit = 0

# -- the service and who may do what with it
c.JupyterHub.services = [hub.service(at(settings.service_port), settings.secret("service_token"))]
idle = IdleTimes.from_env()
if idle.on:  # servers say how long nothing was done in them
    c.LocalGPUSpawner.environment["GPUSPAWNER_ACTIVITY_SECONDS"] = f"{idle.check:g}"
if idle.cull is not None:  # the supervisor runs it; this is its token and what that may do
    c.JupyterHub.services.append({"name": hub.CULLER, "api_token": settings.secret("culler_token"), "display": False})
c.JupyterHub.custom_scopes = hub.SCOPES
c.JupyterHub.load_roles = hub.roles(["admin"], culled=idle.cull is not None, parking=settings.parking)
