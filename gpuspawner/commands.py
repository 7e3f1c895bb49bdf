"""What the command `gpuspawner` does with a running service: its words are those of the client."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from gpuspawner.client import Client
from gpuspawner.state import Settings

_CLASSES = ("inference-urgent", "interactive", "training", "batch")
_BY = ("user", "group", "project", "session", "model")


def add(commands: Any) -> None:
    """Add the commands to an argparse sub-parser."""
    status = commands.add_parser("status", help="show the cards and the sessions that run")
    status.add_argument("--json", action="store_true", help="as JSON, for programs")
    start = commands.add_parser("start", help="ask for a server with a share")
    start.add_argument("share")
    _server(start)
    start.add_argument("--wait", action="store_true", help="wait in the queue where there is no room")
    start.add_argument("--kind", help="the class of work: inference-urgent, interactive, training or batch")
    start.add_argument("--run-seconds", type=float, help="how long it will run, where that is known")
    start.add_argument("--deadline", help="when it must be done, such as 2026-12-24T18:00:00+01:00")
    resize = commands.add_parser("resize", help="change the share of a running session")
    resize.add_argument("share")
    _server(resize)
    _server(commands.add_parser("release", help="stop a server, which gives its share back"))
    cost = commands.add_parser("cost", help="what was used and charged in a month")
    cost.add_argument("--month", help="such as 2026-11; left out: the current one")
    cost.add_argument("--by", choices=_BY, default="user")
    cost.add_argument("--json", action="store_true", help="as JSON, for programs")
    policy = commands.add_parser("policy", help="the policy file: check one, or explain it for a user")
    verbs = policy.add_subparsers(dest="verb", required=True)
    check = verbs.add_parser("check", help="read a policy file, and say what is wrong with it")
    check.add_argument("file", nargs="?", help="left out: the one that the service reads")
    verbs.add_parser("explain", help="what the policy in force means for a user").add_argument("user")
    verbs.add_parser("show", help="what is in force, and what is wrong with the file")
    ledger = commands.add_parser("ledger", help="who held what when: verify, export, correct")
    verbs = ledger.add_subparsers(dest="verb", required=True)
    verbs.add_parser("verify", help="whether the chain is whole").add_argument(
        "--head", help="a head that was noted before: whether it still occurs"
    )
    export = verbs.add_parser("export", help="all rows as a file")
    export.add_argument("--format", choices=("csv", "json", "parquet"), default="csv")
    export.add_argument("file", help="- is the standard output")
    trace = verbs.add_parser("trace", help="who wanted what when, for `gpuspawner queue replay`")
    trace.add_argument("--month", help="such as 2026-11; left out: the current one")
    trace.add_argument("--names", action="store_true", help="with the users' names; else they are numbered")
    trace.add_argument("file", help="- is the standard output")
    correct = verbs.add_parser("correct", help="charge more or less than a row says, by a new row")
    correct.add_argument("row", type=int)
    correct.add_argument("amount", help="such as 1.20; to give back: ledger correct 7 --reason R -- -1.20")
    correct.add_argument("--reason", required=True)


def add_queue(acts: Any) -> None:
    """Add what `gpuspawner queue` does with a running service; without an act it lists."""
    listed = acts.add_parser("list", help="who waits, the next first; so does `gpuspawner queue` alone")
    listed.add_argument("--json", action="store_true", help="as JSON, for programs")
    change = acts.add_parser("change", help="set the class or the deadline of somebody who waits")
    change.add_argument("id", help="as `queue list` shows it")
    change.add_argument("--class", dest="kind", choices=_CLASSES)
    change.add_argument("--deadline", help="when it must be done, such as 2026-11-30T18:00:00+01:00; none: no deadline")
    change.add_argument("--reason", required=True, help="for the audit, and for whoever waits")


def _server(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--user", help="whose server; left out: yours")
    parser.add_argument("--server", default=None, help="a named server")


def run(given: argparse.Namespace) -> int:
    """Do it; the exit status. Raises GPUSpawnerError."""
    if given.command == "policy" and given.verb == "check":
        return check_policy(given.file)
    with Client.from_env() as client:
        if given.command == "status":
            return _status(client, given.json)
        if given.command == "start":
            queue = {name: getattr(given, name) or None for name in ("wait", "kind", "run_seconds", "deadline")}
            queue = {name: value for name, value in queue.items() if value is not None}
            client.start(given.share, given.server or "", given.user, **queue)
            print(f"Asked for {given.share}. `gpuspawner status` shows when it runs.")
        elif given.command == "release":
            client.release(given.server or "", given.user)
            print("Stopped.")
        elif given.command == "resize":
            return _resize(client, given)
        elif given.command == "queue":
            return _queue(client, given)
        elif given.command == "cost":
            return _cost(client, given)
        elif given.command == "policy":
            return _show(client.policy()) if given.verb == "show" else _explain(client, given.user)
        else:
            return _ledger(client, given)
    return 0


def _status(client: Client, as_json: bool) -> int:
    offers, sessions = client.offers(), client.sessions()
    if as_json:
        print(json.dumps({"offers": offers["offers"], "sessions": sessions}, indent=2))
        return 0
    label = " (simulated)" if offers["simulated"] else ""
    free = [offer for offer in offers["offers"] if offer["cards"] == 1]
    print(f"cards{label}: free now: " + ", ".join(f"{o['free_places']} x {o['share']} {o['model']}" for o in free))
    for session in sessions:
        used = session["memory_used_bytes"]
        memory = "unknown" if used is None else f"{used / 2**30:.2f} GiB"
        print(f"{_whose(session)}: {session['share']} of {session['model']}, {memory} in use, {session['state']}")
    if not sessions:
        print("no session runs")
    return 0


def _resize(client: Client, given: argparse.Namespace) -> int:
    session = client.session(given.user, given.server)
    price = next((o["price_per_hour"] for o in session["options"] if o["share"] == given.share), None)
    if price is not None:
        print(f"{session['price_per_hour']} → {price} {session['currency']} per hour")
    answer = client.resize(session["id"], given.share)
    print(f"{session['share']} → {answer['session']['share']} in {answer['applied_ms']:.1f} ms")
    return 0


def _queue(client: Client, given: argparse.Namespace) -> int:
    if given.act == "change":
        changes = {} if given.kind is None else {"kind": given.kind}
        if given.deadline is not None:
            changes["deadline"] = None if given.deadline == "none" else given.deadline
        now = client.prioritise(given.id, given.reason, **changes)
        at = f"number {now['place']}" if now["place"] else "in no place at the moment"
        due = f", due {now['deadline']}" if now["deadline"] else ""
        print(f"{_whose(now)}: {now['kind']}{due}, {at}. {now['reason']}")
        return 0
    told = client.queue()
    if given.act and given.json:
        print(json.dumps(told, indent=2))
        return 0
    for each in told["queue"]:
        due = f", due {each['deadline']}" if each["deadline"] else ""
        print(
            f"{each['place'] or '-':>3}  {each['id']}  {_whose(each)}: {each['share']}, {each['kind']}{due}, "
            f"since {each['since']}, {_still(each)}. {each['reason']}"
        )
    others = told["length"] - len(told["queue"])
    if others or not told["queue"]:
        print(f"{others} others wait" if others else "nobody waits")
    return 0


def _whose(row: dict[str, Any]) -> str:
    return "/".join(part for part in (row["user"], row["server"]) if part)


def _still(row: dict[str, Any]) -> str:
    low, high, waited = row["expected_low_seconds"], row["expected_high_seconds"], row["waited_seconds"]
    if low is None or high is None:
        return "for how long is not known"
    if waited > high:
        return "longer than expected"
    return f"probably {max(0, low - waited) / 60:.0f} to {(high - waited) / 60:.0f} min more"


def _cost(client: Client, given: argparse.Namespace) -> int:
    told = client.cost(given.by, given.month)
    if given.json:
        print(json.dumps(told, indent=2))
        return 0
    print(f"{told['start']} to {told['end']}, in {told['currency']}")
    print(f"{given.by:<32} {'eighth-hours':>12} {'charge':>14} {'cost':>14}")
    for each in [*told["sums"], *([{**told["idle"], "name": "not used"}] if told["idle"] else [])]:
        hours = f"{each['eighth_seconds'] / 3600:.2f}"
        print(f"{each['name']:<32} {hours:>12} {each['charge']:>14} {each['cost'] or 'unknown':>14}")
    print(f"{'all':<32} {'':>12} {told['charge']:>14} {told['node_cost'] or '':>14}")
    return 0


def _show(told: dict[str, Any]) -> int:
    if told["problem"]:
        print(f"not in force: {told['problem']}")
    digest = told["digest"] or "none"
    print(f"policy {digest[:12]}, prices in {told['currency']}")
    print("rules: " + (", ".join(told["rules"]) if told["restricted"] else "none: everybody may start everything"))
    return 1 if told["problem"] else 0


def check_policy(file: str | None) -> int:
    """Read a policy file; 1 where it cannot be used."""
    from gpuspawner.service.policy.source import parse

    path = Path(file or os.environ.get("GPUSPAWNER_POLICY") or Settings.from_env().state / "policy.yaml")
    try:
        read = parse(path.read_text(encoding="utf-8"))
    except Exception as error:
        print(f"gpuspawner: {path}: {error}", file=sys.stderr)
        return 1
    rules = "no rules: everybody may start everything" if read.rules is None else f"{len(read.rules)} rules"
    print(f"{path}: good. {rules}, {len(read.budgets)} budgets, prices in {read.currency}.")
    return 0


def _explain(client: Client, user: str) -> int:
    told = client.explain(user)
    print(f"{user}: groups {', '.join(told['groups']) or 'none'}; roles {', '.join(told['roles']) or 'none'}")
    if not told["restricted"]:
        print("There are no rules: everybody may start everything.")
        return 0
    print("rules: " + (", ".join(rule["name"] for rule in told["rules"]) or "none"))
    print("rights on their own sessions: " + (", ".join(told["rights"]) or "none"))
    print(f"sessions at once: {'any number' if told['sessions'] is None else told['sessions']}")
    allowed = told["environments"]
    print(f"environments: {'all' if allowed is None else ', '.join(allowed) or 'none'}")
    for start in told["starts"]:
        what = f"{start['share']} {start['model']}".strip()
        reason = f": {start['reason']}" if start["reason"] else ""
        print(f"  {'may   ' if start['allowed'] else 'may not'} {what}{reason}")
    return 0


def _ledger(client: Client, given: argparse.Namespace) -> int:
    if given.verb == "verify":
        told = client.verify(given.head)
        print(f"{told['rows']} rows, head {told['head'] or 'none'}: {told['problem'] or 'whole'}")
        return 0 if told["ok"] else 1
    if given.verb in ("export", "trace"):
        with contextlib.ExitStack() as open_files:
            file = sys.stdout.buffer if given.file == "-" else open_files.enter_context(Path(given.file).open("wb"))
            if given.verb == "export":
                client.export(file, given.format)
            else:
                client.trace(file, given.month, names=given.names)
        return 0
    made = client.correct(given.row, given.amount, given.reason)
    print(f"row {made['id']}: {made['amount']} {made['currency']}")
    return 0
