"""Requests that change the catalogue, at any broker of a cluster: the controller serves them as those of the client."""

from __future__ import annotations

from typing import Any

import pytest
from support.cluster_nodes import NONE, SESSION_MS, SHORT, Nodes, described, produce

from odradek.broker.remote.forwarder import FORWARD_TIMEOUT_MS
from odradek.broker.settings.protection import AUTHORIZER, STANDARD_AUTHORIZER
from odradek.core.errors import ErrorCode
from odradek.security.forwarded_principal import pack_principal, read_principal
from odradek.security.principal import ANONYMOUS, USER, Principal, TokenPrincipal
from odradek.wire import frames
from odradek.wire.api_keys import (
    ALTER_CLIENT_QUOTAS,
    ALTER_PARTITION_REASSIGNMENTS,
    CREATE_ACLS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_QUORUM,
    ELECT_LEADERS,
    ENVELOPE,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    METADATA,
    UPDATE_FEATURES,
)

TOPIC, BROKER, LOGGER = 2, 4, 8
LONG_MS = 2 * FORWARD_TIMEOUT_MS


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def topic(name: str, partitions: int = 4, factor: int = 1) -> dict[str, Any]:
    row = {"name": name, "num_partitions": partitions, "replication_factor": factor, "assignments": [], "configs": []}
    return {"topics": [row], "timeout": 10_000, "validate_only": False}


def setting(kind: int, name: str, key: str, value: str) -> dict[str, Any]:
    change = {"name": key, "config_operation": 0, "value": value}
    resources = [{"resource_type": kind, "resource_name": name, "configs": [change]}]
    return {"resources": resources, "validate_only": False}


def create(nodes: Nodes, broker: int, name: str, **options: Any) -> ErrorCode:
    code: ErrorCode = nodes.brokers[broker].call(CREATE_TOPICS, 7, topic(name), **options).topics[0].error_code
    return code


def test_a_client_sees_its_change_at_once_at_the_broker_that_it_has_asked(nodes: Nodes) -> None:
    for number in range(20):
        broker = nodes.brokers[1 + number % 2]
        assert create(nodes, broker.broker_id, f"t{number}") is NONE
        made = broker.broker.catalog.topic(f"t{number}")
        assert made is not None
        own = [one.partition_id for one in made.partitions if one.leader == broker.broker_id]
        assert len(own) == 2, "the leaders are spread"
        assert produce(broker, f"t{number}", own[0]) is NONE
    nodes.check_images()


def test_every_broker_passes_every_kind_of_change_on(nodes: Nodes) -> None:
    first, second = nodes.brokers.values()
    assert create(nodes, 1, "t") is NONE
    grow = {"topics": [{"name": "t", "count": 6, "assignments": None}], "timeout": 9000, "validate_only": False}
    assert second.call(CREATE_PARTITIONS, 3, grow).results[0].error_code is NONE
    for kind, name, key, value in [
        (TOPIC, "t", "retention.ms", "70000"), (BROKER, "", "log.retention.ms", "80000"),
        (BROKER, "1", "log.flush.interval.messages", "7"), (BROKER, "2", "log.flush.interval.messages", "8"),
    ]:  # fmt: skip
        asked = first if name == "1" else second
        reply = asked.call(INCREMENTAL_ALTER_CONFIGS, 1, setting(kind, name, key, value)).responses[0]
        assert reply.error_code is NONE, reply
    quota = {
        "entries": [{"entity": [{"entity_type": "user", "entity_name": "u"}],
                     "ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}]}],
        "validate_only": False,
    }  # fmt: skip
    assert first.call(ALTER_CLIENT_QUOTAS, 1, quota).entries[0].error_code is NONE
    feature = {"feature": "group.version", "max_version_level": 0, "upgrade_type": 2}
    message = {"timeout": 9000, "feature_updates": [feature], "validate_only": False}
    assert second.call(UPDATE_FEATURES, 1, message).error_code is NONE
    nodes.check_images()
    assert first.broker.config.text("log.flush.interval.messages") == "7"
    assert second.broker.config.text("log.flush.interval.messages") == "8"
    assert {one.broker.config.text("log.retention.ms") for one in (first, second)} == {"80000"}
    assert (
        first.call(DELETE_TOPICS, 6, {"topics": [{"name": "t", "topic_id": None}], "timeout": 9000})
        .responses[0]
        .error_code
        is NONE
    )
    assert first.broker.catalog.topic("t") is None
    nodes.check_images()


def test_a_change_of_several_resources_has_its_replies_in_order(nodes: Nodes) -> None:
    """The broker answers for itself and its loggers, the controller for topics: one reply has both."""
    assert create(nodes, 1, "t") is NONE
    resources = [
        setting(kind, name, key, value)["resources"][0]
        for kind, name, key, value in [
            (TOPIC, "t", "retention.ms", "70000"), (BROKER, "1", "log.flush.interval.messages", "7"),
            (BROKER, "2", "log.flush.interval.messages", "8"), (LOGGER, "2", "root", "WARN"),
            (TOPIC, "unknown", "retention.ms", "1"), (BROKER, "2", "log.retention.ms", "9"), (TOPIC, "t", "x", "1"),
        ]
    ]  # fmt: skip
    for chosen, codes in [
        ((0, 1, 2, 3, 4), [NONE, ErrorCode.invalid_request, NONE, NONE, ErrorCode.unknown_topic_or_partition]),
        ((2, 0, 5), [ErrorCode.invalid_request, NONE, ErrorCode.invalid_request]),
        ((1, 3), [ErrorCode.invalid_request, NONE]),
        ((1, 6, 0), [ErrorCode.invalid_request, ErrorCode.invalid_request, ErrorCode.invalid_request]),
    ]:
        message = {"resources": [resources[at] for at in chosen], "validate_only": False}
        rows = nodes.brokers[2].call(INCREMENTAL_ALTER_CONFIGS, 1, message).responses
        assert [row.error_code for row in rows] == codes, chosen
        assert [row.resource_name for row in rows] == [resources[at]["resource_name"] for at in chosen]
    nodes.check_images()
    assert nodes.brokers[2].broker.config.text("log.flush.interval.messages") == "8"
    assert nodes.brokers[1].broker.catalog.topic_configs("t")["retention.ms"] == "70000"


def test_refusals_are_those_of_the_controller(nodes: Nodes) -> None:
    assert create(nodes, 1, "t") is NONE
    assert create(nodes, 2, "t") is ErrorCode.topic_already_exists
    refused = nodes.brokers[2].call(CREATE_TOPICS, 7, topic("three", factor=3)).topics[0]
    assert refused.error_code is ErrorCode.invalid_replication_factor
    assert refused.error_message == (
        "Unable to replicate the partition 3 time(s): The target replication factor of 3 cannot be reached because "
        "only 2 broker(s) are registered or some brokers have all their log directories cordoned."
    )


def test_the_quorum_at_a_broker_is_that_of_the_controller(nodes: Nodes) -> None:
    nodes.settle()
    message = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
    part = nodes.brokers[2].call(DESCRIBE_QUORUM, 2, message).topics[0].partitions[0]
    assert (part.leader_id, sorted(one.replica_id for one in part.observers)) == (100, [1, 2])


def test_loggers_are_those_of_the_broker_that_is_asked(nodes: Nodes) -> None:
    nodes.controller.node.kill()
    message = setting(LOGGER, "2", "root", "WARN")
    assert nodes.brokers[2].call(INCREMENTAL_ALTER_CONFIGS, 1, message).responses[0].error_code is NONE
    wrong = nodes.brokers[1].call(INCREMENTAL_ALTER_CONFIGS, 1, message).responses[0]
    assert wrong.error_code is ErrorCode.invalid_request


def test_elections_and_moves_of_replicas_do_what_they_say(nodes: Nodes) -> None:
    first, second = nodes.brokers.values()
    assert create(nodes, 1, "t") is NONE

    def elect(kind: int) -> ErrorCode:
        made = second.broker.catalog.topic("t")
        assert made is not None
        partition = next(one.partition_id for one in made.partitions if one.replicas == (1,))
        wanted = [{"topic": "t", "partitions": [partition]}]
        message = {"election_type": kind, "topic_partitions": wanted, "timeout": 9000}
        results = second.call(ELECT_LEADERS, 2, message).replica_election_results
        code: ErrorCode = results[0].partition_result[0].error_code
        return code

    def move(*replicas: int) -> ErrorCode:
        part = {"partition_index": 0, "replicas": replicas}
        message = {"timeout": 9000, "topics": [{"name": "t", "partitions": [part]}]}
        code: ErrorCode = first.call(ALTER_PARTITION_REASSIGNMENTS, 0, message).responses[0].partitions[0].error_code
        return code

    made = first.broker.catalog.topic("t")
    assert made is not None
    (present,) = made.partitions[0].replicas
    assert move(present) is NONE
    assert move(3 - present) is ErrorCode.invalid_replica_assignment
    assert move(9) is ErrorCode.invalid_replica_assignment
    assert [elect(kind) for kind in (0, 1)] == [ErrorCode.election_not_needed] * 2
    first.kill()
    nodes.world.advance(3 * SESSION_MS)
    assert elect(0) is ErrorCode.preferred_leader_not_available
    assert elect(1) is ErrorCode.eligible_leaders_not_available


# --- the client -----------------------------------------------------------------------------------------------------

ALTER_PARTITION = 56
SECURED = {AUTHORIZER: STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS;User:root"}


def test_the_controller_asks_what_the_client_may_do() -> None:
    nodes = Nodes(SECURED)
    assert create(nodes, 1, "t", user="alice") is ErrorCode.topic_authorization_failed
    assert create(nodes, 2, "t", user="root") is NONE
    acl = {
        "resource_type": TOPIC, "resource_name": "u", "resource_pattern_type": 3, "principal": "User:alice",
        "host": "*", "operation": 5, "permission_type": 3,
    }  # fmt: skip
    refused = nodes.brokers[1].call(CREATE_ACLS, 3, {"creations": [acl]}, user="alice").results[0]
    assert refused.error_code is ErrorCode.cluster_authorization_failed
    assert nodes.brokers[1].call(CREATE_ACLS, 3, {"creations": [acl]}, user="root").results[0].error_code is NONE
    assert create(nodes, 2, "u", user="alice") is NONE
    nodes.check_images()


def envelope(request: bytes, principal: bytes | None = None, host: bytes = bytes([127, 0, 0, 1])) -> dict[str, Any]:
    packed = pack_principal(ANONYMOUS) if principal is None else principal
    return {"request_data": request, "request_principal": packed, "client_host_address": host}


CREATION = frames.encode_request(CREATE_TOPICS, 7, 5, "c", topic("t"))[4:]
ENVELOPES: list[tuple[dict[str, Any], ErrorCode]] = [
    (envelope(CREATION), NONE),
    (envelope(CREATION, host=bytes(16)), NONE),
    (envelope(frames.encode_request(ENVELOPE, 0, 5, "c", envelope(CREATION))[4:]), ErrorCode.invalid_request),
    (envelope(frames.encode_request(METADATA, 4, 5, "c", {"topics": [], "allow_auto_topic_creation": False})[4:]),
     ErrorCode.invalid_request),
    (envelope(CREATION[:2] + b"\0\x63" + CREATION[4:]), ErrorCode.unsupported_version),
    (envelope(CREATION[:-9]), ErrorCode.unsupported_version),
    (envelope(CREATION[:6]), ErrorCode.unsupported_version),
    (envelope(b""), ErrorCode.unsupported_version),
    (envelope(CREATION, b""), ErrorCode.principal_deserialization_failure),
    (envelope(CREATION, b"\0\1" + pack_principal(ANONYMOUS)[2:]), ErrorCode.principal_deserialization_failure),
    (envelope(CREATION, pack_principal(ANONYMOUS)[:-3]), ErrorCode.principal_deserialization_failure),
    (envelope(CREATION, host=b"\1\2"), ErrorCode.invalid_request),
]  # fmt: skip


def test_what_an_envelope_may_contain(nodes: Nodes) -> None:
    for message, code in ENVELOPES:
        reply = nodes.controller.connect().call(ENVELOPE, 0, message)
        assert reply.error_code is code, message
        if code is NONE:
            number, inner = frames.decode_reply(CREATE_TOPICS, 7, reply.response_data)
            assert (number, inner.topics[0].name) == (5, "t")


def test_only_a_broker_may_send_envelopes() -> None:
    nodes = Nodes(SECURED)
    wire = nodes.controller.connect()
    wire._wire.connection.principal = Principal(USER, "mallory")
    reply = wire.call(ENVELOPE, 0, envelope(CREATION))
    assert reply.error_code is ErrorCode.cluster_authorization_failed
    assert nodes.controller.broker.catalog.topic("t") is None


def test_only_a_broker_may_ask_for_an_isr() -> None:
    """ClusterAction is asked about before anything else: also for an empty request."""
    nodes = Nodes(SECURED)
    assert create(nodes, 2, "t", user="root") is NONE
    found = nodes.controller.broker.catalog.topic("t")
    assert found is not None
    part = {"partition_index": 0, "leader_epoch": 0, "new_isr_with_epochs": [], "leader_recovery_state": 0,
            "partition_epoch": 0}  # fmt: skip
    topics = [{"topic_id": found.id, "partitions": [part]}]
    wire = nodes.controller.connect()
    for asked in (topics, []):
        message = {"broker_id": 1, "broker_epoch": 5, "topics": asked}
        wire._wire.connection.principal = Principal(USER, "mallory")
        assert wire.call(ALTER_PARTITION, 3, message).error_code is ErrorCode.cluster_authorization_failed
        wire._wire.connection.principal = ANONYMOUS
        expected = ErrorCode.stale_broker_epoch if asked else NONE
        assert wire.call(ALTER_PARTITION, 3, message).error_code is expected


@pytest.mark.parametrize(
    "principal", [ANONYMOUS, Principal(USER, "ünï" * 6000), Principal("Group", ""), TokenPrincipal(USER, "t")]
)
def test_a_principal_is_read_as_it_was_packed(principal: Principal) -> None:
    found = read_principal(pack_principal(principal))
    assert (found, type(found)) == (principal, type(principal))
    for size in range(len(pack_principal(principal)[:40])):
        with pytest.raises(ValueError, match="principal"):
            read_principal(pack_principal(principal)[:size])


def test_the_longest_request_is_forwarded_whatever_the_name_of_its_user() -> None:
    """Its envelope is longer than any request of a client."""
    limit = 100_000
    nodes = Nodes({"socket.request.max.bytes": str(limit)})
    message: dict[str, Any] = {"topics": [], "timeout": 9000, "validate_only": True}
    while (left := limit - len(frames.encode_request(CREATE_TOPICS, 7, 1, "client", message)) + 4) > 0:
        name = str(len(message["topics"])).rjust(min(left - 17, 200), "x")
        message["topics"].append(topic(name, 1)["topics"][0])
        if left <= 240:
            break
    assert limit - 60 <= len(frames.encode_request(CREATE_TOPICS, 7, 1, "client", message)) - 4 <= limit
    reply = nodes.brokers[1].call(CREATE_TOPICS, 7, message, user="ü" * 15_000, answer_ms=LONG_MS)
    assert {row.error_code for row in reply.topics} == {NONE}
    assert len(reply.topics) == len(message["topics"]) > 400


# --- when the controller is away, or this broker is late ------------------------------------------------------------


def test_a_request_waits_for_a_controller_that_restarts(nodes: Nodes) -> None:
    nodes.controller.node.kill()
    nodes.world.after(4_000, nodes.controller.begin)
    begun_ms = nodes.world.now_ms
    assert create(nodes, 1, "t", answer_ms=LONG_MS) is NONE
    assert nodes.world.now_ms - begun_ms < 6_000
    nodes.check_images()


def test_a_request_without_a_controller_ends_at_the_time_out(nodes: Nodes) -> None:
    nodes.controller.node.kill()
    begun_ms = nodes.world.now_ms
    message = setting(TOPIC, "t", "retention.ms", "1")
    feature = {"feature": "group.version", "max_version_level": 0, "upgrade_type": 2}
    reply = nodes.brokers[1].call(
        UPDATE_FEATURES, 1, {"timeout": 9000, "feature_updates": [feature], "validate_only": False}, answer_ms=LONG_MS
    )
    assert reply.error_code is ErrorCode.request_timed_out
    assert nodes.world.now_ms - begun_ms == pytest.approx(FORWARD_TIMEOUT_MS, abs=100)
    reply = nodes.brokers[1].call(INCREMENTAL_ALTER_CONFIGS, 1, message, answer_ms=LONG_MS)
    assert [row.error_code for row in reply.responses] == [ErrorCode.request_timed_out]


def test_a_broker_that_does_not_learn_of_the_change_replies_at_the_time_out_of_the_request(nodes: Nodes) -> None:
    first = nodes.brokers[1]
    nodes.settle()
    first.role.membership.copy.on_applied = lambda end: None  # it looks as if nothing were applied any more
    begun_ms = nodes.world.now_ms
    assert create(nodes, 1, "t", answer_ms=LONG_MS) is NONE
    assert nodes.world.now_ms - begun_ms == pytest.approx(10_000, abs=100)


def test_a_client_without_patience_cuts_no_request_of_others(nodes: Nodes) -> None:
    """Its broker asks what is committed for as long as the client waits. Requests of others are not sent twice."""
    first, found = nodes.brokers[1], dict[str, list[bytes]]()
    nodes.settle()
    for number in range(12):
        name = f"t{number}"
        answers = found.setdefault(name, [])
        message = topic(name) | {"timeout": 0 if number % 3 == 0 else 10_000}
        first.node.connect(answers.append).send(frames.encode_request(CREATE_TOPICS, 7, 1, "client", message))
        nodes.world.advance(1)
    end_ms = nodes.world.now_ms + 20_000
    while not all(found.values()) and nodes.world.now_ms < end_ms:
        nodes.world.advance(5)
    codes = {name: frames.decode_reply(CREATE_TOPICS, 7, one)[1].topics[0].error_code for name, (one,) in found.items()}
    patient = {name for number, name in enumerate(found) if number % 3}
    assert {codes[name] for name in patient} == {NONE}
    assert set(codes.values()) <= {NONE, ErrorCode.request_timed_out}


# --- topics and producer ids on demand ------------------------------------------------------------------------------


def test_metadata_creates_topics_and_a_coordinator_its_own(nodes: Nodes) -> None:
    first, second = nodes.brokers.values()
    message = {"topics": [{"name": "auto"}], "allow_auto_topic_creation": True}
    assert first.call(METADATA, 4, message, answer_ms=LONG_MS).topics[0].error_code is NONE
    assert second.call(FIND_COORDINATOR, 1, {"key": "g", "key_type": 0}, answer_ms=LONG_MS) is not None
    made = second.broker.catalog.topic("__consumer_offsets")
    assert made is not None
    assert made.partition_count == 4
    nodes.check_images()
    nodes.controller.node.kill()
    begun_ms = nodes.world.now_ms
    message = {"topics": [{"name": "later"}], "allow_auto_topic_creation": True}
    row = first.call(METADATA, 4, message, answer_ms=LONG_MS).topics[0]
    assert row.error_code is ErrorCode.unknown_topic_or_partition
    assert nodes.world.now_ms - begun_ms <= 2_100, "a client does not wait long for a topic"


def producer_id(nodes: Nodes, broker: int) -> int:
    message = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    reply = nodes.brokers[broker].call(INIT_PRODUCER_ID, 4, message, answer_ms=LONG_MS)
    assert reply.error_code is NONE
    return int(reply.producer_id)


def test_no_two_producers_get_one_id(nodes: Nodes) -> None:
    ids = [producer_id(nodes, broker) for broker in (1, 2, 1, 2, 1)]
    nodes.brokers[1].kill()
    nodes.brokers[1].begin()
    nodes.brokers[1].run_until_joined()
    ids += [producer_id(nodes, broker) for broker in (1, 2, 1)]
    assert len(set(ids)) == len(ids)
    assert ids[2] == ids[0] + 1, "a block has many ids"


def test_a_block_for_another_incarnation_is_not_used(nodes: Nodes) -> None:
    """The record of a block names only the broker's id: a process that was paused reads that of its successor."""
    paused = nodes.brokers[1]
    before = producer_id(nodes, 1)
    epoch = paused.role.membership.lifecycle.epoch
    reply = nodes.controller.connect().call(67, 0, {"broker_id": 1, "broker_epoch": epoch})
    assert reply.error_code is NONE
    nodes.settle()
    assert producer_id(nodes, 1) == before + 1


def test_replayed_and_snapshot_images_are_equal_after_requests_at_all_brokers(nodes: Nodes) -> None:
    for number in range(10):
        assert create(nodes, 1 + number % 2, f"t{number}") is NONE
    late = nodes.new_broker(3, **SHORT)
    late.run_until_joined()
    nodes.settle()
    nodes.world.advance(SESSION_MS)
    assert described(late.broker.catalog.state) == described(nodes.brokers[1].broker.catalog.state)
