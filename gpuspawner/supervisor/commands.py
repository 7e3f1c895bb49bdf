"""`gpuspawner up` and `gpuspawner stop`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from gpuspawner.errors import GPUSpawnerError
from gpuspawner.node import cards, gate, leftovers
from gpuspawner.node.limits import launch
from gpuspawner.processes import start_time
from gpuspawner.state import Settings
from gpuspawner.supervisor import logs, setup
from gpuspawner.supervisor.keeper import PidFile, end_process
from gpuspawner.supervisor.parts import parts
from gpuspawner.supervisor.supervisor import (
    Supervisor,
    authenticator,
    end_leftovers,
    live_sessions,
    lock_file,
    only_one,
    require_free_ports,
    until_signal,
)

_STOP_COMMAND = os.environ.get("GPUSPAWNER_STOP_COMMAND", "gpuspawner stop")
_END_SESSION_WITHIN = 10.0


def up(argv: Sequence[str] = ()) -> int:
    """Run everything until Ctrl-C. Exit status 0, or 1 with a sentence on standard error."""
    parser = argparse.ArgumentParser(
        prog="gpuspawner up",
        description="Start JupyterHub with this machine's cards. Settings come from the environment: GPUSPAWNER_PORT, "
        "GPUSPAWNER_STATE, GPUSPAWNER_CARDS, GPUSPAWNER_SIMULATED, GPUSPAWNER_BASE_URL.",
    )
    parser.parse_args(list(argv))
    try:
        settings = Settings.from_env()
        setup.create(settings.state)
        with only_one(settings):
            return asyncio.run(_up(settings))
    except GPUSpawnerError as error:
        _say(error.message, sys.stderr)
        if error.code == "running":
            _say(f"It is at {_address(settings)}. To end it: {_STOP_COMMAND}", sys.stderr)
    except TimeoutError:
        _say(f"Not everything answered in time. See {settings.state / 'logs'}.", sys.stderr)
    except KeyboardInterrupt:
        return 130
    return 1


async def _up(settings: Settings) -> int:
    signalled = asyncio.create_task(until_signal())
    left = await end_leftovers(settings, simulation=not live_sessions(settings))
    if left:
        _say(f"Ended what an earlier run left: {', '.join(left)}.")
    require_free_ports(settings)
    gate.Policy.from_env()  # what the service would refuse is refused here, where it is read
    plan = await asyncio.to_thread(cards.choose)
    logs.rotate(settings.state / "logs")
    supervisor = Supervisor(settings, parts(settings, plan))
    _say("Starting …")
    starting = asyncio.create_task(supervisor.start())
    try:
        await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            await starting
            _say(_welcome(settings, plan, await authenticator(settings)))
            await signalled
        else:
            starting.cancel()
        _say("Ending proxy, service and hub …")
    finally:
        await supervisor.end()
    running = len(live_sessions(settings))
    if _stop_file(settings).running():
        _say("Ended.")  # who asked for it ends the servers too, and tells of that
    elif running:
        who, they = ("1 server runs", "it") if running == 1 else (f"{running} servers run", "them")
        _say(f"{who} on, kernels and all; start gpuspawner again to reach {they}. To end {they}: {_STOP_COMMAND}")
    else:
        _say("Ended. No server is running.")
    return 0


def _welcome(settings: Settings, plan: cards.CardsPlan, signs_in: str | None) -> str:
    """What is said once everything runs. `signs_in`: the authenticator's class; only ours has these passwords."""
    if signs_in == "SharedPasswordAuthenticator":
        people = (
            f"any name, password  {settings.secret('user_password')}\n"
            f"  or as        admin, password     {settings.secret('admin_password')}"
        )
    else:
        people = f"the hub's configuration says ({signs_in or 'it does not say by what'})"
    kind = f"simulated: {plan.simulated_spec}" if plan.simulated_spec else plan.kind.upper()
    return (
        f"\n  JupyterHub   {_address(settings)}\n"
        f"  Sign in as   {people}\n"
        f"  Cards        {kind} ({plan.reason})\n"
        f"  Logs         {settings.state / 'logs'}\n"
        f"\nCtrl-C ends it; servers that were started run on. `{_STOP_COMMAND}` ends them too.\n"
    )


def stop(argv: Sequence[str] = ()) -> int:
    """End everything of this installation, sessions included. Exit status 0, or 1 if something remains."""
    argparse.ArgumentParser(prog="gpuspawner stop", description=stop.__doc__).parse_args(list(argv))
    try:
        settings = Settings.from_env()
    except GPUSpawnerError as error:
        _say(error.message, sys.stderr)
        return 1
    if not (settings.state / "run").is_dir():
        _say("Nothing is running.")
        return 0
    return asyncio.run(_stop(settings))


async def _stop(settings: Settings) -> int:
    ended: list[str] = []
    _stop_file(settings).write(os.getpid(), start_time(os.getpid()) or 0)
    # the supervisor first, or it would start the others again
    if found := PidFile(lock_file(settings)).running():
        await end_process(*found, within=60.0)
        ended.append("supervisor")
    running = live_sessions(settings)
    await asyncio.gather(*(asyncio.to_thread(launch.end_session, folder, _END_SESSION_WITHIN) for folder in running))
    remaining = live_sessions(settings)
    ended += await end_leftovers(settings, simulation=not remaining)
    await asyncio.to_thread(leftovers.remove_cgroups, settings.state)
    if running:
        count = len(running) - len(remaining)
        _say(f"Ended {count} server{'' if count == 1 else 's'}.")
    for folder in remaining:
        _say(f"Could not end the server of session {folder.name}.", sys.stderr)
    _say("Stopped." if ended or running else "Nothing is running.")
    return 1 if remaining else 0


def _stop_file(settings: Settings) -> PidFile:
    """Names the `stop` that is under way."""
    return PidFile(settings.state / "run" / "stop")


def _address(settings: Settings) -> str:
    return f"http://127.0.0.1:{settings.port}{settings.base_url}"


def _say(text: str, to: TextIO | None = None) -> None:
    print(text, file=to or sys.stdout, flush=True)
