"""The effects of broker settings at the start, and of changed broker, topic and logger settings at run time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.brokers import RunningBroker, Wire, eventually, unique
from test_server_frames import create, fetch, produce
from test_server_start_and_stop import config_of, describe, list_offset

from odradek.testing.process import BrokerProcess

TOPIC, BROKER, LOGGER = 2, 4, 8


@pytest.fixture
def wire(bootstrap: str):
    with Wire(bootstrap) as connection:
        yield connection


def alter(wire: Wire, kind: int, name: str, **settings: str | None) -> int:
    rows = [
        {"name": key.replace("_", "."), "config_operation": 0 if value is not None else 1, "value": value}
        for key, value in settings.items()
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": rows}
    return int(wire.call(44, 1, {"resources": [resource], "validate_only": False}).responses[0].error_code)


def described(wire: Wire, kind: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
    """Returns the value and Kafka's code of the source for each setting."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    message = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    rows = wire.call(32, 4, message).results[0].configs
    return {row.name: (row.value, int(row.config_source)) for row in rows}


# --- at the start -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def custom(tmp_path_factory: pytest.TempPathFactory):
    """A broker with values other than the defaults."""
    settings = {
        "broker.rack": "r7",
        "num.partitions": "3",
        "default.replication.factor": "2",
        "fetch.max.bytes": "1024",
        "max.incremental.fetch.session.cache.slots": "1",
        "max.request.partition.size.limit": "2",
        "offset.metadata.max.bytes": "5",
        "group.min.session.timeout.ms": "7000",
        "group.max.session.timeout.ms": "8000",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.segment.bytes": "2000000",
        "log.retention.check.interval.ms": "100",
        "log.flush.start.offset.checkpoint.interval.ms": "100",
        "socket.listen.backlog.size": "9",
        "auto.create.topics.enable": "false",
    }
    with BrokerProcess(tmp_path_factory.mktemp("custom"), config=settings) as running, Wire(running.bootstrap) as wire:
        yield running, wire


def test_the_rack_and_the_defaults_of_topics_are_used(custom, topic: str) -> None:
    _, wire = custom
    metadata = {"topics": None, "allow_auto_topic_creation": True, "include_topic_authorized_operations": False,
                "include_cluster_authorized_operations": False}  # fmt: skip
    assert wire.call(3, 9, metadata).brokers[0].rack == "r7"
    row = {"name": topic, "num_partitions": -1, "replication_factor": -1, "assignments": [], "configs": []}
    message = {"topics": [row], "timeout": 1000, "validate_only": False}
    assert wire.call(19, 7, message).topics[0].error_code == 38  # the default is two replicas, but there is one broker
    row["replication_factor"] = 1
    assert wire.call(19, 7, message).topics[0].num_partitions == 3


def test_fetch_size_and_number_of_sessions_are_limited(custom, topic: str) -> None:
    _, wire = custom
    create(wire, topic)
    for _ in range(5):
        produce(wire, topic, [b"x" * 400])
    found = wire.call(1, 11, fetch(topic, max_wait_ms=0)).responses[0].partitions[0]
    assert 400 < len(found.records) <= 1024
    sessions = [wire.call(1, 11, fetch(topic, max_wait_ms=0, session=(0, 0))).session_id for _ in range(2)]
    assert sessions[0] != 0
    assert sessions[1] == 0


def test_a_page_of_topic_descriptions_is_limited(custom, topic: str) -> None:
    _, wire = custom
    create(wire, topic, 3)
    message = {"topics": [{"name": topic}], "response_partition_limit": 2000, "cursor": None}
    reply = wire.call(75, 0, message)
    assert [part.partition_index for part in reply.topics[0].partitions] == [0, 1]
    assert reply.next_cursor.partition_index == 2


def test_group_settings_limit_session_timeouts_and_metadata(custom, topic: str, group: str) -> None:
    _, wire = custom
    create(wire, topic)
    eventually(lambda: wire.call(10, 2, {"key": group, "key_type": 0}).error_code == 0)

    def join(session_timeout_ms: int) -> int:
        message = {"group_id": group, "session_timeout": session_timeout_ms, "rebalance_timeout": 1000,
                   "member_id": "", "group_instance_id": None, "protocol_type": "consumer",
                   "protocols": [{"name": "range", "metadata": b""}]}  # fmt: skip
        return int(wire.call(11, 5, message).error_code)

    eventually(lambda: join(6999) == 26)
    assert join(8001) == 26
    assert join(7500) == 79  # MEMBER_ID_REQUIRED: the group accepts the member

    def commit(metadata: str) -> int:
        part = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
        rows = [{"name": topic, "partitions": [part | {"committed_metadata": metadata}]}]
        message = {"group_id": unique("simple"), "generation_id_or_member_epoch": -1, "member_id": "",
                   "group_instance_id": None, "topics": rows}  # fmt: skip
        return int(wire.call(8, 7, message).topics[0].partitions[0].error_code)

    assert commit("12345") == 0
    assert commit("123456") == 12
    assert len(describe(wire, "__consumer_offsets").partitions) == 1
    assert config_of(wire, "__consumer_offsets", "segment.bytes") == "2000000"


def test_retention_follows_its_check_interval_and_log_starts_are_stored(custom, topic: str) -> None:
    running, wire = custom
    create(wire, topic, retention_ms="1", internal_segment_bytes="1000")
    for _ in range(5):
        produce(wire, topic, [b"x" * 400])
    eventually(lambda: list_offset(wire, topic, -2) == 5, what="the log start after retention")
    kept = unique("topic")
    create(wire, kept)
    produce(wire, kept, [b"a", b"b"])
    part = {"partition_index": 0, "offset": 1}
    wire.call(21, 2, {"topics": [{"name": kept, "partitions": [part]}], "timeout": 1000})
    checkpoint = Path(running.data_dir) / "log-start-offset-checkpoint"
    eventually(lambda: checkpoint.exists() and f"{kept} 0 1" in checkpoint.read_text())


# --- at run time ------------------------------------------------------------------------------------------------


def test_a_smaller_segment_size_applies_to_the_next_record(tmp_path: Path, topic: str) -> None:
    with BrokerProcess(tmp_path) as running, Wire(running.bootstrap) as wire:
        create(wire, topic)

        def segments() -> int:
            return len(list((running.data_dir / f"{topic}-0").glob("*.log")))

        for _ in range(5):
            produce(wire, topic, [b"x" * 400])
        assert segments() == 1
        assert alter(wire, TOPIC, topic, internal_segment_bytes="1000") == 0
        for _ in range(4):
            produce(wire, topic, [b"x" * 400])
        assert segments() >= 3
        assert alter(wire, TOPIC, topic, internal_segment_bytes=None) == 0
        before = segments()
        for _ in range(6):
            produce(wire, topic, [b"x" * 400])
        assert segments() == before


def test_a_topics_setting_has_precedence_over_those_of_the_broker_and_the_cluster(
    own_broker: Callable[..., RunningBroker], topic: str
) -> None:
    running = own_broker(message_max_bytes="5000")
    with Wire(running.bootstrap) as wire:
        create(wire, topic)

        def largest() -> int:
            """Produces records of four sizes. Returns the largest size that the broker accepts."""
            passed = [size for size in (500, 1500, 2500, 3500) if not produce(wire, topic, [b"x" * size]).error_code]
            return max(passed)

        assert described(wire, TOPIC, topic, "max.message.bytes")["max.message.bytes"] == ("5000", 4)
        assert alter(wire, BROKER, "", message_max_bytes="3000") == 0
        assert described(wire, TOPIC, topic, "max.message.bytes")["max.message.bytes"] == ("3000", 3)
        assert largest() == 2500
        assert alter(wire, BROKER, "1", message_max_bytes="2000") == 0
        assert described(wire, TOPIC, topic, "max.message.bytes")["max.message.bytes"] == ("2000", 2)
        assert largest() == 1500
        assert alter(wire, TOPIC, topic, max_message_bytes="1000") == 0
        assert described(wire, TOPIC, topic, "max.message.bytes")["max.message.bytes"] == ("1000", 1)
        assert largest() == 500
        assert alter(wire, TOPIC, topic, max_message_bytes=None) == 0
    running.kill()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert described(wire, BROKER, "1", "message.max.bytes")["message.max.bytes"] == ("2000", 2)
        assert described(wire, BROKER, "", "message.max.bytes")["message.max.bytes"] == ("3000", 3)
        assert alter(wire, BROKER, "1", message_max_bytes=None) == 0
        assert described(wire, BROKER, "1", "message.max.bytes")["message.max.bytes"] == ("3000", 3)
        assert alter(wire, BROKER, "", message_max_bytes=None) == 0
        assert described(wire, BROKER, "1", "message.max.bytes")["message.max.bytes"] == ("5000", 4)


def test_unknown_names_are_refused_for_topics_and_unset_ones_may_be_removed(wire: Wire, topic: str) -> None:
    create(wire, topic)
    resource = {"resource_type": TOPIC, "resource_name": topic}
    row = {"name": "retention.mss", "config_operation": 0, "value": "1"}
    reply = wire.call(44, 1, {"resources": [resource | {"configs": [row]}], "validate_only": False}).responses[0]
    assert reply.error_code == 40
    assert reply.error_message == "Unknown topic config name: retention.mss"  # the message is Kafka's
    assert alter(wire, BROKER, "1", log_retention_mss="1") == 0, "as in Kafka: a plugin may have such a setting"
    assert described(wire, BROKER, "1")["log.retention.mss"] == (None, 2)
    assert alter(wire, BROKER, "1", log_retention_mss=None) == 0
    # Kafka's reassignment tool removes these settings whether they are set or not.
    rates = {"leader_replication_throttled_rate": None, "follower_replication_throttled_rate": None}
    assert alter(wire, BROKER, "1", **rates, no_such_setting=None) == 0
    assert "leader.replication.throttled.rate" not in described(wire, BROKER, "1")
    assert alter(wire, BROKER, "1", leader_replication_throttled_rate="1000") == 0
    assert described(wire, BROKER, "1")["leader.replication.throttled.rate"] == ("1000", 2)
    assert alter(wire, BROKER, "1", **rates) == 0


def test_a_refused_setting_leaves_no_trace(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    """The broker also refuses a value that is invalid only for topics. If it stored such a value, it could not start
    again."""
    invalid_request = 42
    broker = own_broker()
    with Wire(broker.bootstrap) as wire:
        for name in ("", "1"):
            assert alter(wire, BROKER, name, log_roll_ms="0") == invalid_request
            assert alter(wire, BROKER, name, log_flush_interval_ms="-1") == invalid_request
            assert alter(wire, BROKER, name, num_io_threads="0") == invalid_request
            assert alter(wire, BROKER, name, log_cleaner_threads="1000000") == invalid_request
            assert alter(wire, BROKER, name, ssl_keystore_location="/k") == invalid_request
            assert alter(wire, BROKER, name, listeners="PLAINTEXT://:1") == invalid_request
        assert alter(wire, BROKER, "", ssl_client_auth="required") == invalid_request  # a setting of one broker only
        assert described(wire, BROKER, "1", "log.roll.ms", "num.io.threads") == {
            "log.roll.ms": (None, 5),
            "num.io.threads": ("8", 5),
        }
        create(wire, topic)
    broker.stop()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        assert described(wire, TOPIC, topic, "segment.ms") == {"segment.ms": ("604800000", 5)}


def test_a_logger_level_can_be_changed(tmp_path: Path) -> None:
    running = BrokerProcess(tmp_path)
    with running, Wire(running.bootstrap) as wire:
        log = tmp_path / "broker.log"

        def bad_frame() -> None:
            with Wire(running.bootstrap) as bad:
                bad.socket.sendall(b"\xff\xff\xff\xff")
                assert bad.socket.recv(1) == b""

        bad_frame()
        assert "frame of -1 bytes" not in log.read_text()
        assert alter(wire, LOGGER, "1", **{"odradek.broker": "DEBUG"}) == 0
        assert described(wire, LOGGER, "1")["odradek.broker"] == ("DEBUG", 6)
        bad_frame()
        eventually(lambda: "frame of -1 bytes" in log.read_text())
        assert alter(wire, LOGGER, "1", **{"odradek.broker": None}) == 0
        assert described(wire, LOGGER, "1")["odradek.broker"] == described(wire, LOGGER, "1")["root"]
