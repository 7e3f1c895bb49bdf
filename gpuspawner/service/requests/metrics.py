"""What Prometheus reads: cards, sessions, requests, and whether the policy file is the one in force."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpuspawner.share import EIGHTHS_PER_CARD

if TYPE_CHECKING:
    from gpuspawner.service.sessions import SessionService

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5)


class Metrics:
    """The metrics of one service."""

    def __init__(self, sessions: SessionService | None) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "gpuspawner_requests", "Requests by route", ("method", "route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "gpuspawner_request_seconds",
            "How long requests took",
            ("method",),
            registry=self.registry,
            buckets=_BUCKETS,
        )
        if sessions is not None:
            self.registry.register(_Now(sessions))

    def count(self, scope: Any, status: int, seconds: float) -> None:
        """A request was answered. Routes and methods are known ones, so that nobody can make up new series."""
        route = scope["route"].path if "route" in scope else "none"
        method = scope["method"] if scope["method"] in ("GET", "POST", "PATCH", "PUT", "DELETE", "HEAD") else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method).observe(seconds)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self.registry)


class _Now(Collector):
    def __init__(self, sessions: SessionService) -> None:
        self._sessions = sessions

    def describe(self) -> Iterable[Any]:
        """Nothing beforehand: the registry would ask the fleet."""
        return []

    def collect(self) -> Iterable[Any]:
        """What is so now."""
        labels = ["node", "uuid", "model"]
        free = GaugeMetricFamily("gpuspawner_card_free_eighths", "Eighths that a start can have", labels=labels)
        all_ = GaugeMetricFamily("gpuspawner_card_eighths", "Eighths of the card", labels=labels)
        failed = GaugeMetricFamily("gpuspawner_card_failed", "Whether the card is out of service", labels=labels)
        for state in self._sessions.fleet.cards():
            names = [state.node, state.card.uuid, state.card.model]
            free.add_metric(names, state.free_eighths)
            all_.add_metric(names, EIGHTHS_PER_CARD)
            failed.add_metric(names, state.health.state == "failed")
        by_state = Counts(row.state for row in self._sessions.store.sessions(states=("starting", "running", "ending")))
        live = GaugeMetricFamily("gpuspawner_sessions", "Sessions by state", labels=["state"])
        for state_name in ("starting", "running", "ending"):
            live.add_metric([state_name], by_state[state_name])
        broken = GaugeMetricFamily("gpuspawner_policy_broken", "Whether the policy file is not what is in force")
        broken.add_metric([], self._sessions.book.source.problem is not None)
        return [free, all_, failed, live, broken]
