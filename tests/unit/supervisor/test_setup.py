"""The state folder as the supervisor makes it."""

from __future__ import annotations

from pathlib import Path

from gpuspawner.supervisor import setup


def test_secrets_are_private_kept_and_long_enough(tmp_path: Path) -> None:
    state = tmp_path / "state"
    setup.create(state)
    found = {name: (state / "secrets" / name).read_text() for name in setup.SECRETS}
    assert len(set(found.values())) == len(found)
    assert len(found["user_password"].strip()) >= 16
    assert len(found["admin_password"].strip()) >= 32
    for path in [state, state / "secrets"]:
        assert path.stat().st_mode & 0o777 == 0o700
    for name in found:
        assert (state / "secrets" / name).stat().st_mode & 0o777 == 0o600
    setup.create(state)
    assert found == {name: (state / "secrets" / name).read_text() for name in setup.SECRETS}
