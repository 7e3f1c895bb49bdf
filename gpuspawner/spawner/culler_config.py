"""Configuration of jupyterhub-idle-culler, which the supervisor runs where GPUSPAWNER_IDLE_CULL_SECONDS is set."""

from traitlets.config import get_config

from gpuspawner.spawner.culling import may_be_culled

c = get_config()
c.IdleCuller.cull_arbiter_hook = may_be_culled
