"""The ledger over REST: reports, exports, the chain, corrections."""

import html
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import HTMLResponse, StreamingResponse

from gpuspawner.errors import InvalidInput, NotAllowed, NotFound
from gpuspawner.service import schemas
from gpuspawner.service.auth import Authenticator, Principal, signed_in
from gpuspawner.service.ledger import export, trace
from gpuspawner.service.ledger.chain import verify
from gpuspawner.service.ledger.report import Report, month_of, report
from gpuspawner.service.ledger.rows import rows
from gpuspawner.service.sessions import SessionService
from gpuspawner.service.tariff import money

_LAST = 4_102_444_800  # 2100
Second = Annotated[int | None, Query(ge=0, le=_LAST, description="seconds since the epoch")]


def ledger_routes(sessions: SessionService, authenticator: Authenticator) -> APIRouter:
    """GET /cost, /cost/page, /ledger/export, /ledger/trace, /ledger/verify, POST /ledger/corrections."""
    router = APIRouter()
    Caller = Annotated[Principal, Depends(signed_in(authenticator))]

    def period(month: str | None, start: int | None, end: int | None) -> tuple[int, int]:
        zone = sessions.book.source.current.prices.zone
        if month is not None:
            return month_of(month, zone)
        now = int(time.time())
        if start is None:
            start = month_of(datetime.now(zone).strftime("%Y-%m"), zone)[0]
        end = now if end is None else end
        if end < start:
            raise InvalidInput("end: is before the start.", field="end", given=end, allowed=f"{start} or later")
        return start, end

    def made(caller: Principal, by: str, month: str | None, start: int | None, end: int | None) -> Report:
        begin, over = period(month, start, end)
        all_of_it = caller.may("admin")
        if not all_of_it and caller.user is None:
            raise NotAllowed("Only people and administrators have a report.")
        if not all_of_it and by == "group":
            raise NotAllowed("Only administrators see reports by group.")
        only = None if all_of_it else caller.user
        directory = sessions.book.directory
        return report(sessions.store.engine, begin, over, by, lambda user: sorted(directory.person(user).groups), only)

    @router.get("/cost")
    def cost(
        caller: Caller,
        by: Literal["user", "group", "project", "session", "model"] = "user",
        month: Annotated[str | None, Query(max_length=7)] = None,
        start: Second = None,
        end: Second = None,
    ) -> schemas.CostReport:
        """What was used and charged in a month or period: for administrators of all, else of the caller alone."""
        return _shown(made(caller, by, month, start, end), sessions.book.source.current.prices.currency)

    @router.get("/cost/page", response_class=HTMLResponse)
    def page(
        caller: Caller,
        by: Literal["user", "group", "project", "session", "model"] = "user",
        month: Annotated[str | None, Query(max_length=7)] = None,
    ) -> HTMLResponse:
        """The same as a page to print."""
        shown = _shown(made(caller, by, month, None, None), sessions.book.source.current.prices.currency)
        return HTMLResponse(
            _page(shown), headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
        )

    def only_admin(caller: Principal) -> None:
        if not caller.may("admin"):
            raise NotAllowed("Only administrators may see the whole ledger.")

    @router.get("/ledger/export")
    def exported(
        caller: Caller,
        format: Literal["csv", "json", "parquet"] = "csv",  # noqa: A002
        start: Second = None,
        end: Second = None,
    ) -> Response:
        """The ledger's rows as a file. Administrators only."""
        only_admin(caller)
        found = rows(sessions.store.engine, start, end)
        made: dict[str, Any] = {"csv": export.csv_lines, "json": export.json_lines, "parquet": export.parquet}
        content: Iterator[str] | Iterator[bytes] = made[format](found)
        name = f'attachment; filename="ledger.{"jsonl" if format == "json" else format}"'
        headers = {"Content-Disposition": name, "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(content, media_type=export.FORMATS[format], headers=headers)

    @router.get("/ledger/trace")
    def traced(
        caller: Caller,
        month: Annotated[str | None, Query(max_length=7)] = None,
        start: Second = None,
        end: Second = None,
        names: bool = False,
    ) -> Response:
        """Who wanted what when, as a trace for `gpuspawner queue replay`: without the users' names unless `names`.
        Of the current month where no period is given. Administrators only."""
        only_admin(caller)
        begin, over = period(month, start, end)
        lines = (f"{line}\n" for line in trace.lines(sessions.store.engine, begin, over, names=names))
        headers = {"Content-Disposition": 'attachment; filename="trace.jsonl"', "X-Content-Type-Options": "nosniff"}
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=headers)

    @router.get("/ledger/verify")
    def verified(
        caller: Caller, head: Annotated[str | None, Query(pattern="^[0-9a-f]{64}$")] = None
    ) -> schemas.Verified:
        """Whether the chain of hashes is whole, and holds a `head` that was noted before. Administrators only."""
        only_admin(caller)
        found = verify((row._mapping for row in rows(sessions.store.engine)), head)
        return schemas.Verified(ok=found.problem is None, rows=found.rows, head=found.head, problem=found.problem)

    @router.post("/ledger/corrections", status_code=201)
    def correct(body: schemas.Correction, caller: Caller) -> schemas.LedgerEntry:
        """Charge more or less than a row of a session says, by a new row. Administrators only."""
        only_admin(caller)
        row = sessions.store.entry(body.row)
        if row is None or not row.session or row.kind == "correction":
            raise NotFound("There is no such row of a session.", field="row", given=body.row)
        from gpuspawner.service.views import entry

        number = sessions.store.corrected(row, body.micros, caller.name, body.reason)
        new = sessions.store.entry(number)
        assert new is not None
        return entry(new)

    return router


def _shown(found: Report, currency: str) -> schemas.CostReport:
    def total(each: Any) -> schemas.CostSum:
        values = asdict(each)
        charge, cost = values.pop("charge_micros"), values.pop("cost_micros")
        return schemas.CostSum(charge=money(charge), cost=None if cost is None else money(cost), **values)

    def iso(second: int) -> str:
        return datetime.fromtimestamp(second, UTC).isoformat()

    return schemas.CostReport(
        start=iso(found.start),
        end=iso(found.end),
        by=found.by,
        currency=currency,
        sums=[total(each) for each in found.sums],
        idle=None if found.idle is None else total(found.idle),
        node_cost=None if found.node_cost_micros is None else money(found.node_cost_micros),
        charge=money(found.charge_micros),
    )


_STYLE = (
    "body{font:14px/1.5 sans-serif;margin:2cm auto;max-width:25cm;color:#111;background:#fff}"
    "table{border-collapse:collapse;width:100%}th,td{padding:4px 8px;border-bottom:1px solid #999;text-align:right}"
    "th:first-child,td:first-child{text-align:left}tfoot{font-weight:bold}@media print{body{margin:0}}"
)


def _page(found: schemas.CostReport) -> str:
    def line(name: str, each: schemas.CostSum) -> str:
        kwh = "unknown" if each.energy_mj is None else f"{each.energy_mj / 3.6e9:.3f}"
        carbon = "unknown" if each.co2_ug is None else f"{each.co2_ug / 1e9:.3f}"
        hours = f"{each.eighth_seconds / 3600:.2f}"
        cells = [name, str(each.sessions), hours, each.charge, each.cost or "unknown", kwh, carbon]
        return "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in cells) + "</tr>"

    heads = [found.by, "sessions", "eighth-hours", "charge", "cost", "kWh", "kg CO2"]
    body = "".join(line(each.name, each) for each in found.sums)
    body += line("not used", found.idle) if found.idle is not None else ""
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>GPU costs</title><style>{_STYLE}</style>"
        f"<h1>GPU costs</h1><p>{html.escape(found.start)} to {html.escape(found.end)}, "
        f"in {html.escape(found.currency)}.</p>"
        f"<table><thead><tr>{''.join(f'<th scope=col>{head}</th>' for head in heads)}</tr></thead><tbody>{body}</tbody>"
        f"<tfoot><tr><td>all</td><td></td><td></td><td>{found.charge}</td><td>{found.node_cost or 'unknown'}</td>"
        "<td></td><td></td></tr></tfoot></table></html>"
    )
