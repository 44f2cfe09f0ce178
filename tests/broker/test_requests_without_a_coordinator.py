"""Group requests with an invalid field while ``__consumer_offsets`` does not exist: they get the error of the field.

``GroupCoordinatorService`` of Apache Kafka 4.3 checks these fields before it looks for the partition of the group.
Valid requests get NOT_COORDINATOR.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers import RunningBroker, Wire

from odradek.wire.api_keys import (
    CONSUMER_GROUP_DESCRIBE,
    CONSUMER_GROUP_HEARTBEAT,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_DELETE,
    SYNC_GROUP,
)

JOIN = {
    "group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "m",
    "group_instance_id": None, "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
    "reason": None,
}  # fmt: skip
BEAT = {
    "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None,
    "rebalance_timeout": 1000, "subscribed_topic_names": ["t"], "subscribed_topic_regex": None,
    "server_assignor": None, "topic_partitions": [],
}  # fmt: skip
SYNC = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None,
        "protocol_type": "consumer", "protocol_name": "range", "assignments": []}  # fmt: skip
CLASSIC_BEAT = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
EMPTY_ID = {"group_id": ""}


@pytest.fixture
def wire(own_broker: Callable[..., RunningBroker]) -> Iterator[Wire]:
    """A connection to a new broker: no client has looked for a coordinator."""
    with Wire(own_broker().bootstrap) as connected:
        yield connected


def test_the_error_of_a_bad_request_comes_first(wire: Wire) -> None:
    def error(api_key: int, version: int, message: dict[str, Any]) -> str:
        return str(wire.call(api_key, version, message).error_code.name)

    for version in (0, 1):
        assert error(CONSUMER_GROUP_HEARTBEAT, version, BEAT | EMPTY_ID) == "invalid_request"
        assert error(CONSUMER_GROUP_HEARTBEAT, version, BEAT | {"server_assignor": "x"}) == "unsupported_assignor"
        assert error(CONSUMER_GROUP_HEARTBEAT, version, BEAT | {"member_epoch": -3}) == "invalid_request"
        assert error(CONSUMER_GROUP_HEARTBEAT, version, BEAT) == "not_coordinator"
    reply = wire.call(CONSUMER_GROUP_HEARTBEAT, 1, BEAT | EMPTY_ID)
    assert reply.error_message == "GroupId can't be empty."
    reply = wire.call(JOIN_GROUP, 9, JOIN | EMPTY_ID)
    assert (reply.error_code.name, reply.member_id) == ("invalid_group_id", "m")
    assert error(JOIN_GROUP, 9, JOIN | {"session_timeout": 1}) == "invalid_session_timeout"
    assert error(JOIN_GROUP, 9, JOIN) == "not_coordinator"
    for api_key, version, message in (
        (SYNC_GROUP, 5, SYNC), (HEARTBEAT, 4, CLASSIC_BEAT), (LEAVE_GROUP, 5, {"group_id": "g", "members": []}),
        (OFFSET_DELETE, 0, {"group_id": "g", "topics": []}),
    ):  # fmt: skip
        assert error(api_key, version, message | EMPTY_ID) == "invalid_group_id"
        assert error(api_key, version, message) == "not_coordinator"
    asked = {"group_ids": ["", "g"], "include_authorized_operations": False}
    found = wire.call(CONSUMER_GROUP_DESCRIBE, 1, asked).groups
    assert [row.error_code.name for row in found] == ["invalid_group_id", "not_coordinator"]
