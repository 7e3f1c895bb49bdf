"""Sign-in by any OpenID Connect provider, such as Keycloak: members of a group, their groups as JupyterHub groups.

    GPUSPAWNER_HUB_CONFIG=docs/how-to/oauth/oidc.py OIDC_ISSUER=https://KEYCLOAK/realms/REALM OAUTH_CLIENT_ID=… \\
        OAUTH_CALLBACK_URL=https://HUB/hub/oauth_callback
"""

import json
import os
import urllib.request
from pathlib import Path

from gpuspawner.state import Settings

c = get_config()
load_subconfig(str(Path(__file__).resolve().parents[3] / "jupyterhub_config.py"))

GROUP = "gpu-users"  # who may sign in: its members
ADMIN_GROUP = "gpu-admins"

issuer = os.environ["OIDC_ISSUER"].rstrip("/")
with urllib.request.urlopen(f"{issuer}/.well-known/openid-configuration", timeout=30) as answer:
    provider = json.load(answer)
if provider["issuer"].rstrip("/") != issuer:
    raise ValueError(f"OIDC_ISSUER is {issuer}, but the provider calls itself {provider['issuer']}")

c.JupyterHub.authenticator_class = "generic-oauth"
c.Authenticator.allow_all = False
c.Authenticator.admin_users = set()
c.GenericOAuthenticator.login_service = "your organisation's account"
c.OAuthenticator.client_secret = (Settings.from_env().state / "secrets" / "oauth_client_secret").read_text().strip()
c.OAuthenticator.authorize_url = provider["authorization_endpoint"]
c.OAuthenticator.token_url = provider["token_endpoint"]
c.OAuthenticator.userdata_url = provider["userinfo_endpoint"]
c.OAuthenticator.scope = ["openid", "profile"]
# Keycloak's user names cannot be given to somebody else later, unless an administrator allows it
c.OAuthenticator.username_claim = "preferred_username"
# Keycloak sends `groups` where the client has a "Group Membership" mapper with "Full group path" off
c.OAuthenticator.manage_groups = True
c.OAuthenticator.auth_state_groups_key = "oauth_user.groups"
c.OAuthenticator.allowed_groups = {GROUP, ADMIN_GROUP}
c.OAuthenticator.admin_groups = {ADMIN_GROUP}

for role in c.JupyterHub.load_roles:
    if role["name"] == "gpu-admin":
        role["users"] = []
        role["groups"] = [ADMIN_GROUP]
