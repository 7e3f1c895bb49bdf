"""Sign-in by GitLab, gitlab.com or your own: members of a group, their GitLab groups as JupyterHub groups.

    GPUSPAWNER_HUB_CONFIG=docs/how-to/oauth/gitlab.py GITLAB_URL=https://GITLAB OAUTH_CLIENT_ID=… \\
        OAUTH_CALLBACK_URL=https://HUB/hub/oauth_callback
"""

import json
from pathlib import Path

from gpuspawner.state import Settings

c = get_config()
load_subconfig(str(Path(__file__).resolve().parents[3] / "jupyterhub_config.py"))

GROUP = "my-lab"  # who may sign in: its members
ADMINS = {"a-login"}  # GitLab user names

c.JupyterHub.authenticator_class = "gitlab"
c.Authenticator.allow_all = False
c.Authenticator.admin_users = ADMINS
c.OAuthenticator.client_secret = (Settings.from_env().state / "secrets" / "oauth_client_secret").read_text().strip()
c.GitLabOAuthenticator.allowed_gitlab_groups = {GROUP}
c.GitLabOAuthenticator.scope = ["read_api"]  # groups cannot be read with read_user
c.OAuthenticator.manage_groups = True


async def with_groups(authenticator, auth_state):
    """Add the full paths of the groups that the user is a member of."""
    auth_state["groups"] = []
    page = "1"
    while page:
        answer = await authenticator.httpfetch(
            f"{authenticator.gitlab_api}/groups?min_access_level=10&per_page=100&page={page}",
            headers={"Authorization": f"Bearer {auth_state['access_token']}"},
            parse_json=False,
        )
        auth_state["groups"] += [group["full_path"] for group in json.loads(answer.body)]
        page = answer.headers.get("X-Next-Page", "")
    return auth_state


c.OAuthenticator.modify_auth_state_hook = with_groups
c.OAuthenticator.auth_state_groups_key = "groups"

for role in c.JupyterHub.load_roles:
    if role["name"] == "gpu-admin":
        role["users"] = sorted(ADMINS)
