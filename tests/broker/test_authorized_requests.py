"""Requests of users with ACLs: what a change of ACLs means for a connection at work, and what replies reveal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.brokers import Wire, eventually, unique
from support.principals import BrokerWithPrincipals

from odradek.batches.encode import encode_batch
from odradek.core.access.acl import CLUSTER_NAME, EVERYONE, Operation, Pattern, Permission, Resource
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = (
    Resource.TOPIC, Resource.GROUP, Resource.CLUSTER, Resource.TRANSACTIONAL_ID,
)  # fmt: skip
READ, WRITE, DESCRIBE, DELETE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DELETE
Allow = Callable[..., None]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWithPrincipals]:
    running = BrokerWithPrincipals(tmp_path_factory.mktemp("authorized"))
    running.start()
    yield running
    running.kill()


@pytest.fixture
def admin(broker: BrokerWithPrincipals) -> Iterator[Wire]:
    with broker.wire() as wire:
        yield wire


@pytest.fixture
def user() -> str:
    return unique("user")


@pytest.fixture
def alice(broker: BrokerWithPrincipals, user: str) -> Iterator[Wire]:
    with broker.wire(user) as wire:
        yield wire


@pytest.fixture
def allow(admin: Wire, user: str) -> Allow:
    def allow_user(
        kind: int, name: str, operation: int, *, pattern: int = Pattern.LITERAL, permission: int = Permission.ALLOW
    ) -> None:
        row = {"resource_type": kind, "resource_name": name, "resource_pattern_type": pattern, "host": "*"}
        row |= {"principal": f"User:{user}", "operation": operation, "permission_type": permission}
        (result,) = admin.call(30, 3, {"creations": [row]}).results
        assert result.error_code is ErrorCode.none

    return allow_user


def forbid(admin: Wire, user: str, name: str | None = None) -> None:
    """Deletes the ACLs of a user, for one resource or for all."""
    chosen = {"resource_type_filter": 1, "resource_name_filter": name, "pattern_type_filter": 1, "host_filter": None}
    chosen |= {"principal_filter": f"User:{user}", "operation": 1, "permission_type": 1}
    assert admin.call(31, 3, {"filters": [chosen]}).filter_results[0].matching_acls


def create(admin: Wire, name: str) -> Any:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    (made,) = admin.call(19, 7, {"topics": [topic], "timeout": 5000, "validate_only": False}).topics
    assert made.error_code is ErrorCode.none
    return made.topic_id


def produced(wire: Wire, name: str) -> ErrorCode:
    part = {"index": 0, "records": encode_batch([SimpleRecord(None, b"x" * 10)], now_ms=1)}
    message = {"transactional_id": None, "acks": 1, "timeout": 1000}
    reply = wire.call(0, 9, message | {"topic_data": [{"name": name, "partition_data": [part]}]})
    found: ErrorCode = reply.responses[0].partition_responses[0].error_code
    return found


def fetch(wire: Wire, session: tuple[int, int], topics: list[str]) -> Any:
    place = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1}
    place |= {"log_start_offset": -1, "partition_max_bytes": 1000}
    message = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0, "rack_id": ""}
    message |= {"session_id": session[0], "session_epoch": session[1], "forgotten_topics_data": []}
    return wire.call(1, 12, message | {"topics": [{"topic": name, "partitions": [place]} for name in topics]})


def codes(reply: Any) -> dict[str, ErrorCode]:
    return {topic.topic: part.error_code for topic in reply.responses for part in topic.partitions}


def test_a_remembered_fetch_session_obeys_a_change_at_the_next_request(
    admin: Wire, alice: Wire, allow: Allow, user: str
) -> None:
    kept, lost = unique("kept"), unique("lost")
    for name in (kept, lost):
        create(admin, name)
        assert produced(admin, name) is ErrorCode.none
        allow(TOPIC, name, READ)
    first = fetch(alice, (0, 0), [kept, lost])
    assert codes(first) == dict.fromkeys((kept, lost), ErrorCode.none)
    forbid(admin, user, lost)
    second = fetch(alice, (first.session_id, 1), [])
    assert codes(second) == {kept: ErrorCode.none, lost: ErrorCode.topic_authorization_failed}
    refused = next(topic for topic in second.responses if topic.topic == lost)
    assert not refused.partitions[0].records
    allow(TOPIC, lost, READ)
    assert codes(fetch(alice, (first.session_id, 2), [])) == dict.fromkeys((kept, lost), ErrorCode.none)


def commit(wire: Wire, group: str, topic: str, offset: int) -> ErrorCode:
    row = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""}
    message = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    reply = wire.call(8, 9, message | {"topics": [{"name": topic, "partitions": [row]}]})
    found: ErrorCode = reply.topics[0].partitions[0].error_code
    return found


def test_repeated_commits_stay_on_the_fast_path_and_obey_a_change_at_the_next_request(
    broker: BrokerWithPrincipals, admin: Wire, alice: Wire, allow: Allow, user: str
) -> None:
    group, topic = unique("group"), unique("topic")
    create(admin, topic)
    find_coordinator(admin, group)
    allow(GROUP, group, READ)
    allow(TOPIC, topic, READ)
    path = broker.server.commit_fast_path
    for offset in range(4):
        assert commit(alice, group, topic, offset) is ErrorCode.none
    uses = path.uses
    for offset in range(4, 10):
        assert commit(alice, group, topic, offset) is ErrorCode.none
    assert path.uses - uses == 6, "an authorizer must not switch the fast path off"
    forbid(admin, user, topic)
    assert commit(alice, group, topic, 10) is ErrorCode.topic_authorization_failed
    allow(TOPIC, topic, READ)
    assert commit(alice, group, topic, 11) is ErrorCode.none
    forbid(admin, user, group)
    assert commit(alice, group, topic, 12) is ErrorCode.group_authorization_failed
    assert commit(admin, group, topic, 13) is ErrorCode.none, "the same plan serves who is allowed"
    with broker.wire(unique("stranger")) as stranger:
        assert commit(stranger, group, topic, 14) is ErrorCode.group_authorization_failed


def deleted(wire: Wire, *topics: dict[str, Any]) -> list[tuple[Any, Any, ErrorCode]]:
    rows = [{"name": None, "topic_id": None} | topic for topic in topics]
    reply = wire.call(20, 6, {"topics": rows, "timeout": 5000})
    return [(row.name, row.topic_id, row.error_code) for row in reply.responses]


def test_who_deletes_by_id_is_told_the_name_only_if_it_may_be_described(admin: Wire, alice: Wire, allow: Allow) -> None:
    name = unique("topic")
    topic_id = create(admin, name)
    denied = ErrorCode.topic_authorization_failed
    assert deleted(alice, {"topic_id": topic_id}) == [(None, topic_id, denied)]
    assert deleted(alice, {"name": name}) == [(name, None, denied)]
    assert deleted(alice, {"name": unique("missing")})[0][2] is denied, "as for a topic that exists"
    both = deleted(alice, {"name": name}, {"topic_id": topic_id})
    assert sorted(both, key=str) == sorted([(name, None, denied), (None, topic_id, denied)], key=str)
    allow(TOPIC, name, DESCRIBE)
    assert deleted(alice, {"topic_id": topic_id}) == [(name, topic_id, denied)]
    allow(TOPIC, name, DELETE)
    both = deleted(alice, {"name": name}, {"topic_id": topic_id})
    assert [code for _, _, code in both] == [ErrorCode.invalid_request]
    assert deleted(alice, {"topic_id": topic_id}) == [(name, topic_id, ErrorCode.none)]


def find_coordinator(admin: Wire, group: str) -> None:
    """The first question of a broker's life creates the topic of the coordinators."""
    eventually(lambda: admin.call(10, 4, {"key_type": 0, "coordinator_keys": [group]}).coordinators[0].error_code == 0)


def beat(wire: Wire, group: str, pattern: str, epoch: int, member: str) -> Any:
    message = {"group_id": group, "member_id": member, "member_epoch": epoch, "instance_id": None, "rack_id": None}
    message |= {"rebalance_timeout": 60_000, "subscribed_topic_names": None, "subscribed_topic_regex": pattern}
    return wire.call(68, 1, message | {"server_assignor": None, "topic_partitions": []})


def test_a_pattern_matches_only_topics_that_its_member_may_describe(admin: Wire, alice: Wire, allow: Allow) -> None:
    prefix, group = unique("topics"), unique("group")
    seen, hidden = f"{prefix}.seen", f"{prefix}.hidden"
    ids = {name: create(admin, name) for name in (seen, hidden)}
    allow(GROUP, group, READ)
    allow(TOPIC, seen, DESCRIBE)
    find_coordinator(admin, group)
    epoch = 0

    def assigned() -> set[Any]:
        nonlocal epoch
        reply = beat(alice, group, f"{prefix}.*", epoch, "m" * 22)
        assert reply.error_code is ErrorCode.none, reply
        epoch = reply.member_epoch
        return {} if reply.assignment is None else {row.topic_id for row in reply.assignment.topic_partitions}

    assert eventually(assigned) == {ids[seen]}
    assert hidden in ids


def test_a_quota_counts_the_name_of_the_principal(admin: Wire, alice: Wire, allow: Allow, user: str) -> None:
    topic = unique("topic")
    create(admin, topic)
    allow(TOPIC, topic, WRITE)
    entity = [{"entity_type": "user", "entity_name": user}]
    limit = {"key": "producer_byte_rate", "value": 1.0, "remove": False}
    altered = admin.call(49, 1, {"entries": [{"entity": entity, "ops": [limit]}], "validate_only": False})
    assert altered.entries[0].error_code is ErrorCode.none

    def throttle(wire: Wire) -> int:
        part = {"index": 0, "records": encode_batch([SimpleRecord(None, b"x" * 10)], now_ms=1)}
        message = {"transactional_id": None, "acks": 1, "timeout": 1000}
        reply = wire.call(0, 9, message | {"topic_data": [{"name": topic, "partition_data": [part]}]})
        return int(reply.throttle_time.total_seconds() * 1000)

    assert throttle(admin) == 0
    assert throttle(alice) > 0


def test_nothing_is_appended_for_who_may_not_write(admin: Wire, alice: Wire, allow: Allow) -> None:
    """Also in a request in which other topics are allowed."""
    mine, theirs = unique("mine"), unique("theirs")
    for name in (mine, theirs):
        create(admin, name)
    allow(TOPIC, mine, WRITE)
    part = {"index": 0, "records": encode_batch([SimpleRecord(None, b"x")], now_ms=1)}
    data = [{"name": name, "partition_data": [part]} for name in (mine, theirs)]
    reply = alice.call(0, 9, {"transactional_id": None, "acks": 1, "timeout": 1000, "topic_data": data})
    found = {topic.name: topic.partition_responses[0].error_code for topic in reply.responses}
    assert found == {mine: ErrorCode.none, theirs: ErrorCode.topic_authorization_failed}
    asked = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
    listed = admin.call(2, 6, {"replica_id": -1, "isolation_level": 0,
                               "topics": [{"name": name, "partitions": asked} for name in (mine, theirs)]})  # fmt: skip
    assert {topic.name: topic.partitions[0].offset for topic in listed.topics} == {mine: 1, theirs: 0}
    with pytest.raises(ConnectionError):
        alice.call(0, 9, {"transactional_id": None, "acks": 0, "timeout": 1000, "topic_data": data[1:]})


def test_a_transactional_batch_behind_many_others_needs_the_right_to_its_transactional_id(
    admin: Wire, alice: Wire, allow: Allow
) -> None:
    """The broker looks at few partitions before it begins. A batch behind them must not get past the question."""
    topic, foreign = unique("topic"), unique("id")
    wanted = {"name": topic, "num_partitions": 300, "replication_factor": 1, "assignments": [], "configs": []}
    admin.call(19, 7, {"topics": [wanted], "timeout": 5000, "validate_only": False})
    allow(TOPIC, topic, WRITE)
    eventually(
        lambda: admin.call(10, 4, {"key_type": 1, "coordinator_keys": [foreign]}).coordinators[0].error_code == 0
    )
    begin = {"transactional_id": foreign, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    eventually(lambda: admin.call(22, 5, begin).error_code is ErrorCode.none)
    producer = admin.call(22, 5, begin)
    batch = encode_batch(
        [SimpleRecord(None, b"x")], now_ms=1, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch,
        base_sequence=0, transactional=True,
    )  # fmt: skip
    parts = [{"index": index, "records": b""} for index in range(299)] + [{"index": 299, "records": batch}]
    message = {"transactional_id": foreign, "acks": 1, "timeout": 1000}
    reply = alice.call(0, 12, message | {"topic_data": [{"name": topic, "partition_data": parts}]})
    codes_by_partition = {row.index: row.error_code for row in reply.responses[0].partition_responses}
    assert codes_by_partition[299] is ErrorCode.transactional_id_authorization_failed
    listed = admin.call(66, 1, {"state_filters": ["Ongoing"], "producer_id_filters": [], "duration_filter": -1})
    assert foreign not in {row.transactional_id for row in listed.transaction_states}
    allow(TRANSACTIONAL_ID, foreign, WRITE)
    reply = alice.call(0, 12, message | {"topic_data": [{"name": topic, "partition_data": parts}]})
    assert {row.index: row.error_code for row in reply.responses[0].partition_responses}[299] is ErrorCode.none


def test_everyone_means_every_user(admin: Wire, alice: Wire) -> None:
    topic = unique("topic")
    create(admin, topic)
    row = {
        "resource_type": TOPIC,
        "resource_name": topic,
        "resource_pattern_type": Pattern.LITERAL,
        "host": "127.0.0.1",
    }
    row |= {"principal": EVERYONE, "operation": WRITE, "permission_type": Permission.ALLOW}
    assert produced(alice, topic) is ErrorCode.topic_authorization_failed
    admin.call(30, 3, {"creations": [row]})
    try:
        assert produced(alice, topic) is ErrorCode.none
    finally:
        forbid(admin, "*", topic)


def test_an_acl_whose_principal_has_no_kind_is_refused(admin: Wire) -> None:
    """The code and the text are those of Apache Kafka 4.3."""
    row = {
        "resource_type": Resource.TOPIC, "resource_name": "t", "resource_pattern_type": 3, "host": "*",
        "operation": WRITE, "permission_type": Permission.ALLOW,
    }  # fmt: skip
    for principal in ("alice", ""):
        (result,) = admin.call(30, 3, {"creations": [row | {"principal": principal}]}).results
        assert result.error_code is ErrorCode.invalid_request
        assert result.error_message == (
            f"Could not parse principal from `{principal}` (no colon is present separating the principal type from the "
            "principal name)"
        )


def test_a_fetch_of_a_replica_needs_the_permission_of_a_broker(admin: Wire, alice: Wire, allow: Allow) -> None:
    topic = unique("topic")
    create(admin, topic)
    allow(TOPIC, topic, READ)

    def fetched() -> ErrorCode:
        place = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1}
        place |= {"log_start_offset": 0, "partition_max_bytes": 1000}
        message = {"replica_id": 5, "max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0}
        message |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
        return codes(alice.call(1, 12, message | {"topics": [{"topic": topic, "partitions": [place]}]}))[topic]

    assert fetched() is ErrorCode.topic_authorization_failed
    allow(CLUSTER, CLUSTER_NAME, Operation.CLUSTER_ACTION)
    assert fetched() is not ErrorCode.topic_authorization_failed


def test_levels_of_loggers_need_the_permission_of_the_cluster(alice: Wire, allow: Allow) -> None:
    level = {"name": "odradek.broker", "config_operation": 0, "value": "INFO"}
    resource = {"resource_type": 8, "resource_name": "1", "configs": [level]}

    def altered() -> ErrorCode:
        reply = alice.call(44, 1, {"resources": [resource], "validate_only": True})
        found: ErrorCode = reply.responses[0].error_code
        return found

    assert altered() is ErrorCode.cluster_authorization_failed
    allow(CLUSTER, CLUSTER_NAME, Operation.ALTER_CONFIGS)
    assert altered() is ErrorCode.none


@pytest.mark.parametrize(("kind", "of_cluster"), [(TOPIC, False), (CLUSTER, True)])
def test_a_topic_is_created_at_its_first_use_only_for_who_may_create_it(
    alice: Wire, allow: Allow, kind: int, of_cluster: bool
) -> None:
    topic = unique("topic")
    allow(TOPIC, topic, WRITE)
    message = {"topics": [{"topic_id": None, "name": topic}], "allow_auto_topic_creation": True}
    message |= {"include_topic_authorized_operations": False}

    def described() -> ErrorCode:
        found: ErrorCode = alice.call(3, 13, message).topics[0].error_code
        return found

    assert described() is ErrorCode.topic_authorization_failed
    allow(kind, CLUSTER_NAME if of_cluster else topic, Operation.CREATE)
    assert eventually(lambda: described() is ErrorCode.none)
    assert produced(alice, topic) is ErrorCode.none


def test_an_idempotent_producer_begins_once_it_may_write_a_topic(alice: Wire, allow: Allow) -> None:
    asked = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    assert alice.call(22, 5, asked).error_code is ErrorCode.cluster_authorization_failed
    allow(TOPIC, unique("denied"), WRITE, permission=Permission.DENY)
    assert alice.call(22, 5, asked).error_code is ErrorCode.cluster_authorization_failed
    allow(TOPIC, unique("any"), WRITE, pattern=Pattern.PREFIXED)
    reply = alice.call(22, 5, asked)
    assert (reply.error_code, reply.producer_epoch) == (ErrorCode.none, 0)
