"""The names of services: `NAME.NAMESPACE.svc.cluster.local`, as pods ask for them. No other name is known in there.

`python -m tests.support.cluster.dns --kubeconfig FILE --address ADDRESS`
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from dnslib import QTYPE, RCODE, RR, A
from dnslib.server import BaseResolver, DNSHandler, DNSRecord, DNSServer

from .api import Api

DOMAIN = "cluster.local"
_SECONDS = 5


class Services(BaseResolver):  # type: ignore[misc]
    """Answers with what the API server says at the moment."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def resolve(self, request: DNSRecord, _handler: DNSHandler) -> DNSRecord:
        """The answer to one question."""
        reply = request.reply()
        name = str(request.q.qname).rstrip(".").lower()
        words = name.removesuffix(f".svc.{DOMAIN}").split(".")
        found = None
        if name.endswith(f".svc.{DOMAIN}") and len(words) == 2:
            found = self._api.find("Service", words[0], words[1])
        if found is None:
            reply.header.rcode = RCODE.NXDOMAIN
        elif request.q.qtype == QTYPE.A:
            reply.add_answer(RR(request.q.qname, QTYPE.A, rdata=A(found["spec"]["clusterIP"]), ttl=_SECONDS))
        return reply


def main() -> None:
    """Serve until ended."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--kubeconfig", type=Path, required=True)
    words.add_argument("--address", required=True)
    given = words.parse_args()
    services = Services(Api(given.kubeconfig))
    for tcp in (False, True):
        DNSServer(services, address=given.address, port=53, tcp=tcp).start_thread()
    threading.Event().wait()


if __name__ == "__main__":
    main()
