"""Whatever is sent to the API, the answer is never the service's own failure (schemathesis, from its OpenAPI)."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.memory_fleet import House, MemoryFleet

pytestmark = pytest.mark.timeout(900)

PATH = "/api/v1/openapi.json"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    made = House(
        tmp_path_factory.mktemp("fuzz"), "version: 1\nrules: [{name: all, allow: {sessions: 20}}]", MemoryFleet()
    )
    made.start("ann", "1/8")
    return made


def test_no_request_is_the_services_own_failure(house: House) -> None:
    operations = [found.ok() for found in schemathesis.openapi.from_asgi(PATH, house.app).get_all_operations()]
    assert len(operations) > 15
    for operation in operations:

        @settings(
            max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(operation.as_strategy(), st.sampled_from(["hub", "admin", "ann", "server:ann/", ""]))
        def attack(case: schemathesis.Case, token: str) -> None:
            answer = case.call(headers={"Authorization": f"Bearer {token}"} if token else {})
            assert answer.status_code < 500, (token, case.method, case.formatted_path, answer.text)

        attack()
