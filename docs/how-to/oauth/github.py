"""Sign-in by GitHub: members of an organisation, their teams as JupyterHub groups.

GPUSPAWNER_HUB_CONFIG=docs/how-to/oauth/github.py OAUTH_CLIENT_ID=… OAUTH_CALLBACK_URL=https://HUB/hub/oauth_callback
"""

from pathlib import Path

from gpuspawner.state import Settings

c = get_config()
load_subconfig(str(Path(__file__).resolve().parents[3] / "jupyterhub_config.py"))

ORGANIZATION = "my-lab"  # who may sign in: its members
ADMINS = {"a-login"}  # GitHub logins

c.JupyterHub.authenticator_class = "github"
c.Authenticator.allow_all = False
c.Authenticator.admin_users = ADMINS
c.OAuthenticator.client_secret = (Settings.from_env().state / "secrets" / "oauth_client_secret").read_text().strip()
c.GitHubOAuthenticator.allowed_organizations = {ORGANIZATION}
# read:org also shows members who keep their membership private, and the teams
c.GitHubOAuthenticator.scope = ["read:org"]
c.GitHubOAuthenticator.populate_teams_in_auth_state = True
c.OAuthenticator.manage_groups = True


def groups(auth_state):
    """The teams within our organisation; what teams are called elsewhere must not count here."""
    return [team["slug"] for team in auth_state["teams"] if team["organization"]["login"] == ORGANIZATION]


c.OAuthenticator.auth_state_groups_key = groups

for role in c.JupyterHub.load_roles:
    if role["name"] == "gpu-admin":
        role["users"] = sorted(ADMINS)
