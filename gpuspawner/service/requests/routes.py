"""The audit and the metrics over REST."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from gpuspawner.errors import NotAllowed
from gpuspawner.service import schemas
from gpuspawner.service.auth import Authenticator, Principal, signed_in
from gpuspawner.service.requests.metrics import Metrics
from gpuspawner.service.requests.records import Records
from gpuspawner.service.views import audit_entry


def request_routes(records: Records | None, metrics: Metrics, authenticator: Authenticator) -> APIRouter:
    """GET /audit and GET /metrics."""
    router = APIRouter()
    Caller = Annotated[Principal, Depends(signed_in(authenticator))]

    @router.get("/audit")
    def audit(
        caller: Caller,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**62, description="rows older than this one")] = None,
        user: Annotated[str | None, Query(min_length=1, max_length=255)] = None,
    ) -> schemas.Audit:
        """Who changed what, or tried to, newest first. Administrators only."""
        if not caller.may("admin"):
            raise NotAllowed("Only administrators may see the audit.")
        assert records is not None
        found = records.audit(limit + 1, before, user)
        more = found[limit - 1].id if len(found) > limit else None
        shown = [audit_entry(row) for row in found[:limit]]
        return schemas.Audit(entries=shown, next=more, problem=records.audit_problem() if before is None else None)

    @router.get("/metrics")
    def read_metrics(caller: Caller) -> Response:
        """Metrics for Prometheus. For tokens that may see every session."""
        if not caller.may_everywhere("read"):
            raise NotAllowed("Only tokens with custom:gpuspawner:read for every session may see the metrics.")
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router
