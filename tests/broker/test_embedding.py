"""``odradek.Broker`` in the tests of an application, through confluent-kafka."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from support.brokers import Wire, eventually, unique
from support.publish import commit, consumer, create_topic, log_end, numbers, publish
from support.publish import committed as all_committed
from support.publish import read as read_some

import odradek
from odradek.core.errors import ConfigError, ErrorCode, OdradekError
from odradek.testing.broker import BrokerFailed

BOTH = pytest.mark.parametrize("in_thread", [False, True], ids=["process", "thread"])


@pytest.fixture(scope="module", params=[False, True], ids=["process", "thread"])
def shared(request: pytest.FixtureRequest) -> Iterator[odradek.Broker]:
    """A broker that the tests share. The tests run with a broker in its own process, then with one in a thread.

    The tests must not damage it.
    """
    with odradek.Broker(in_thread=request.param) as broker:
        yield broker


@pytest.fixture
def broker(shared: odradek.Broker) -> odradek.Broker:
    shared.faults.clear()
    return shared


def fired(broker: odradek.Broker) -> list[tuple[str, str]]:
    return [(fault.kind, fault.api) for fault in broker.faults.fired]


def committed(servers: str, group: str, topic: str) -> int | None:
    return all_committed(servers, group).get((topic, 0))


def read(servers: str, topic: str) -> list[int]:
    """Every value in the first partition of the topic."""
    source = consumer(servers, unique("reader"))
    source.assign([TopicPartition(topic, 0, 0)])
    found = [int(message.value()) for message in read_some(source, log_end(servers, topic))]
    source.close()
    return found


# --- life cycle -------------------------------------------------------------------------------------------------


@BOTH
def test_a_broker_runs_until_the_end_of_its_with_block(in_thread: bool, topic: str) -> None:
    with odradek.Broker(
        config={"num.partitions": 3, "auto.create.topics.enable": False}, in_thread=in_thread
    ) as broker:
        create_topic(broker.bootstrap_servers, topic)
        assert publish(broker.bootstrap_servers, topic, numbers(3)) == [0, 1, 2]
        with Wire(broker.bootstrap_servers) as wire:
            asked = [{"name": "made-by-asking", "topic_id": None}]
            message = {"topics": asked, "allow_auto_topic_creation": True}
            row = wire.call(3, 9, message | {"include_cluster_authorized_operations": False,
                                             "include_topic_authorized_operations": False}).topics[0]  # fmt: skip
        assert row.error_code is ErrorCode.unknown_topic_or_partition
        host, _, port = broker.bootstrap_servers.rpartition(":")
        place = broker.data_dir.parent
        assert (place.exists(), broker.running) == (True, True)
    assert (place.exists(), broker.running) == (False, False)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)
    broker.close()
    with pytest.raises(BrokerFailed, match="closed"):
        broker.start()


@BOTH
def test_kill_and_start_keep_what_was_acknowledged(in_thread: bool, topic: str, group: str, tmp_path: Path) -> None:
    with odradek.Broker(tmp_path / "data", in_thread=in_thread) as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, topic)
        publish(servers, topic, numbers(5))
        commit(servers, group, {(topic, 0): 4})
        broker.kill()
        assert not broker.running
        assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        broker.start()
        assert broker.bootstrap_servers == servers
        assert read(servers, topic) == list(range(5))
        assert committed(servers, group, topic) == 4
        broker.stop()
        assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
        broker.start()
        assert log_end(servers, topic) == 5
    assert (tmp_path / "data" / f"{topic}-0").is_dir()


@BOTH
def test_an_ipv6_address_has_brackets(in_thread: bool, topic: str) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    with odradek.Broker(host="::1", in_thread=in_thread) as broker:
        assert broker.bootstrap_servers.startswith("[::1]:")
        create_topic(broker.bootstrap_servers, topic)
        assert publish(broker.bootstrap_servers, topic, numbers(1)) == [0]


def test_a_broker_object_creates_topics(broker: odradek.Broker, topic: str) -> None:
    broker.create_topic(topic, 2, {"retention.ms": 1000, "cleanup.policy": ["compact", "delete"]})
    assert publish(broker.bootstrap_servers, topic, [b"x"], partition=1, key=b"k") == [0]
    with pytest.raises(ValueError, match="already exists"):
        broker.create_topic(topic)
    with pytest.raises(ValueError, match=r"did you mean 'retention.ms'"):
        broker.create_topic(f"{topic}-2", config={"retention.msec": 1})


@BOTH
def test_the_status_of_the_cleaner_is_available(in_thread: bool, topic: str) -> None:
    """One log is compacted. A segment of another log is damaged: the cleaner skips this log, reports the reason, and
    continues."""
    config = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0.01}
    with odradek.Broker(config=config, in_thread=in_thread) as broker:
        small = {"cleanup.policy": "compact", "internal.segment.bytes": 4000}
        names = [f"{topic}-{kind}" for kind in ("good", "bad")]
        for name in names:
            broker.create_topic(name, 1, small | {"min.cleanable.dirty.ratio": 1.0})
            for _ in range(6):
                publish(broker.bootstrap_servers, name, [b"x" * 500] * 4, partition=0, key=b"k")
        broker.stop()
        segment = broker.data_dir / f"{names[1]}-0" / "00000000000000000000.log"
        data = bytearray(segment.read_bytes())
        data[100] ^= 0xFF
        segment.write_bytes(data)
        broker.start()
        before = broker.cleaner()
        assert (before.thread_count, before.dead_thread_count, before.uncleanable) == (1, 0, {})
        assert all(before.dirty_bytes[f"{name}-0"] > 0 for name in names)
        with odradek.Admin(broker.bootstrap_servers) as admin:
            for name in names:
                admin.alter_topic_configs(name, {"min.cleanable.dirty.ratio": "0.01"})
        eventually(lambda: (health := broker.cleaner()).cleanings and health.uncleanable)
        after = broker.cleaner()
        assert list(after.uncleanable) == [f"{names[1]}-0"]
        assert "CRC" in after.uncleanable[f"{names[1]}-0"]
        assert after.uncleanable_bytes > 0
        assert after.last_run_ms >= broker.clock.now_ms() - 60_000
        assert after.dirty_bytes[f"{names[0]}-0"] < before.dirty_bytes[f"{names[0]}-0"]
        assert (after.thread_count, after.dead_thread_count) == (1, 0)


def test_a_broker_ends_with_its_parent_also_after_kill_9(tmp_path: Path) -> None:
    code = (
        "import odradek, sys\n"
        "broker = odradek.Broker().start()\n"
        "print(broker.pid, broker.data_dir.parent, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, place = parent.stdout.readline().split()
    assert Path(place).is_dir()
    os.kill(int(pid), 0)
    parent.kill()
    parent.wait()
    eventually(lambda: gone(int(pid)), what="the broker of a killed parent ends")
    eventually(lambda: not Path(place).exists(), what="its temporary directory removed")
    for pipe in (parent.stdin, parent.stdout):
        assert pipe is not None
        pipe.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")  # a zombie has ended, too; its parent has not waited for it
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_fork_of_the_parent_neither_controls_nor_ends_the_broker() -> None:
    code = (
        "import os, sys, odradek\n"
        "broker = odradek.Broker().start()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    try: broker.clock.now_ms()\n"
        "    except odradek.testing.broker.BrokerFailed as error: print(error, flush=True)\n"
        "    sys.exit()\n"
        "os.waitpid(child, 0)\n"
        "print(broker.running, broker.data_dir.exists(), broker.clock.now_ms() > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == [
        "only the process that started the broker can send it commands, not a fork of it",
        "True True True",
    ]


def test_an_unclosed_broker_ends_with_the_interpreter() -> None:
    code = "import odradek; broker = odradek.Broker().start(); print(broker.pid, broker.data_dir.parent)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    pid, place = done.stdout.split()
    assert done.stderr == ""
    assert gone(int(pid))
    assert not Path(place).exists()


def test_importing_odradek_loads_no_broker() -> None:
    code = (
        "import sys, odradek, odradek.testing.plugin\n"
        "print([n for n in sys.modules if n.partition('.')[0] in ('kio', 'asyncio', 'confluent_kafka')\n"
        "       or n.startswith(('odradek.broker', 'odradek.client'))])\n"
        "odradek.Broker\n"
        "print('odradek.broker.server' in sys.modules, 'kio' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["[]", "False False"]
    with pytest.raises(AttributeError, match="Brocker"):
        _ = odradek.Brocker


# --- errors -------------------------------------------------------------------------------------------------------


@BOTH
def test_an_unknown_setting_is_refused_before_anything_starts(in_thread: bool, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown config 'num.partition'; did you mean 'num.partitions'\?"):
        odradek.Broker(tmp_path / "data", {"num.partition": 4}, in_thread=in_thread)
    with pytest.raises(ConfigError, match="Invalid value many for configuration"):
        odradek.Broker(tmp_path / "data", {"num.partitions": "many"}, in_thread=in_thread)
    with pytest.raises(ConfigError, match="log_level must be DEBUG, INFO, WARNING, ERROR or CRITICAL, not 'LOUD'"):
        odradek.Broker(log_level="LOUD")
    with pytest.raises(ConfigError, match=r"num.partitions: a setting is a text, a number.*not None"):
        odradek.Broker(tmp_path / "data", {"num.partitions": None}, in_thread=in_thread)
    assert not (tmp_path / "data").exists()


@BOTH
def test_a_broker_that_cannot_start_reports_the_reason(in_thread: bool, tmp_path: Path) -> None:
    with odradek.Broker(tmp_path / "data", in_thread=in_thread) as first:
        second = odradek.Broker(tmp_path / "data", in_thread=in_thread)
        with pytest.raises(OdradekError, match="held by another broker"), second:
            pass
        assert not second.running
        port = int(first.bootstrap_servers.rpartition(":")[2])
        third = odradek.Broker(port=port, in_thread=in_thread)
        with pytest.raises(OdradekError, match=f"cannot listen on 127.0.0.1:{port}"), third:
            pass


def test_a_killed_broker_raises_a_clear_error(topic: str) -> None:
    with odradek.Broker() as broker:
        pid = broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: not broker.running)
        assert broker.failed
        with pytest.raises(BrokerFailed, match="not running"):
            broker.clock.now_ms()
        broker.start()
        assert (broker.running, broker.failed) == (True, False)


# --- the clock ----------------------------------------------------------------------------------------------------


@pytest.mark.claim(54, part="b")
def test_after_eight_days_offsets_have_expired_and_records_are_deleted(topic: str, group: str) -> None:
    """The group is empty for longer than offsets.retention.minutes: its offsets expire, and consumers apply their
    reset."""
    with odradek.Broker(in_thread=True) as broker:
        servers = broker.bootstrap_servers
        create_topic(servers, topic, retention_ms=str(30 * 86_400_000))
        create_topic(servers, f"{topic}-week")
        for name in (topic, f"{topic}-week"):
            publish(servers, name, numbers(6))
        commit(servers, group, {(topic, 0): 4})
        broker.clock.advance(days=6)
        assert committed(servers, group, topic) == 4
        assert len(read(servers, f"{topic}-week")) == 6
        broker.clock.advance(timedelta(days=1), hours=24)
        assert committed(servers, group, topic) is None
        late = consumer(servers, group, auto_offset_reset="latest")
        late.assign([TopicPartition(topic, 0)])
        assert late.poll(1) is None
        late.close()
        early = consumer(servers, group, auto_offset_reset="earliest")
        early.assign([TopicPartition(topic, 0)])
        assert int(early.consume(1, 20)[0].value()) == 0
        early.close()
        with Wire(servers) as wire:
            partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}
            rows = {"replica_id": -1, "isolation_level": 0,
                    "topics": [{"name": f"{topic}-week", "partitions": [partition]}]}  # fmt: skip
            assert wire.call(2, 5, rows).topics[0].partitions[0].offset == 6


@BOTH
def test_the_clock_keeps_its_advance_across_a_crash_and_never_moves_back(in_thread: bool) -> None:
    with odradek.Broker(in_thread=in_thread) as broker:
        broker.clock.advance(days=8)
        broker.clock.advance(milliseconds=500)
        broker.kill()
        broker.start()
        ahead_ms = broker.clock.now_ms() - time.time() * 1000
        assert abs(ahead_ms - 8 * 86_400_000 - 500) < 2000
        assert broker.clock.now().timestamp() > time.time() + 7 * 86_400
        with pytest.raises(ValueError, match="cannot go back"):
            broker.clock.advance(days=-1)
        with pytest.raises(TypeError, match="timedelta"):
            broker.clock.advance(8)


def test_advancing_the_clock_ends_the_session_of_a_member(broker: odradek.Broker, topic: str, group: str) -> None:
    create_topic(broker.bootstrap_servers, topic)
    member = {"group_id": group, "session_timeout": 30_000, "rebalance_timeout": 30_000, "member_id": "",
              "group_instance_id": None, "protocol_type": "consumer",
              "protocols": [{"name": "range", "metadata": b""}]}  # fmt: skip
    with Wire(broker.bootstrap_servers) as wire:
        commit(broker.bootstrap_servers, unique("warm"), {(topic, 0): 0})
        asked = wire.call(11, 5, member)
        joined = wire.call(11, 5, member | {"member_id": asked.member_id})
        assert joined.error_code is ErrorCode.none
        beat = {"group_id": group, "generation_id": 1, "member_id": asked.member_id, "group_instance_id": None}
        assert wire.call(12, 3, beat).error_code is ErrorCode.none
        broker.clock.advance(seconds=31)
        assert wire.call(12, 3, beat).error_code is ErrorCode.unknown_member_id


# --- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.claim(9, part="a")
def test_batches_reduce_the_number_of_produce_requests(broker: odradek.Broker, topic: str) -> None:
    """A producer sends 500 records in batches of one record, then in batches of up to 500. The test counts the requests
    by a fault that delays them by 0 s."""
    requests = {}
    for size in (1, 500):
        name = f"{topic}-{size}"
        create_topic(broker.bootstrap_servers, name)
        broker.faults.clear()
        broker.faults.delay("Produce", 0, times=None, topic=name)
        settings = {"bootstrap.servers": broker.bootstrap_servers, "batch.num.messages": size, "linger.ms": 200}
        producer = Producer(settings)
        # The first record is not counted. Until the producer knows the topic, it passes records on one by one, and a
        # flush would send small batches.
        producer.produce(name, b"first", partition=0)
        assert producer.flush(30) == 0
        before = len(fired(broker))
        for number in range(500):
            producer.produce(name, b"%d" % number, partition=0)
        assert producer.flush(30) == 0
        requests[size] = len(fired(broker)) - before
        assert log_end(broker.bootstrap_servers, name) == 501
    broker.faults.clear()
    assert requests[1] == 500
    assert 1 <= requests[500] <= 5


@pytest.mark.claim(30)
def test_a_commit_blocks_until_its_delayed_reply(broker: odradek.Broker, topic: str, group: str) -> None:
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    commit(servers, group, {(topic, 0): 1})
    client = consumer(servers, group)
    for when, offset in (("before", 2), ("after", 3)):
        broker.faults.delay("OffsetCommit", 1.0, topic=topic, when=when)
        began = time.monotonic()
        client.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        # a timer of the event loop counts from the start of the loop's iteration, which is a little earlier
        assert time.monotonic() - began > 0.9
        assert committed(servers, group, topic) == offset
    client.close()
    assert fired(broker) == [("delay", "OffsetCommit")] * 2
    assert broker.faults.pending == []


def test_a_retriable_error_is_retried_until_it_is_over(broker: odradek.Broker, topic: str) -> None:
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    broker.faults.error("Produce", "NOT_ENOUGH_REPLICAS", times=2, topic=topic)
    assert publish(servers, topic, [b"x"], retry_backoff_ms=50) == [0]
    assert fired(broker) == [("error", "Produce")] * 2
    assert [fault.topics for fault in broker.faults.fired] == [[topic]] * 2
    assert log_end(servers, topic) == 1


def test_an_injected_error_reaches_the_client(broker: odradek.Broker, topic: str, group: str) -> None:
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    commit(servers, group, {(topic, 0): 1})
    client = consumer(servers, group)
    broker.faults.error("OffsetCommit", "OFFSET_METADATA_TOO_LARGE")
    with pytest.raises(KafkaException) as caught:
        client.commit(offsets=[TopicPartition(topic, 0, 5)], asynchronous=False)
    assert caught.value.args[0].code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    assert committed(servers, group, topic) == 1
    client.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_connection_during_a_produce_repeats_no_record(broker: odradek.Broker, topic: str, when: Any) -> None:
    """An idempotent producer sends a batch without a reply again. The log gets each batch once.

    With ``when="after"`` the log has the batch before the connection is lost.
    """
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    broker.faults.disconnect("Produce", times=3, topic=topic, when=when)
    publish(servers, topic, numbers(200), enable_idempotence=True, batch_num_messages=20, retry_backoff_ms=20)
    assert read(servers, topic) == list(range(200))
    assert fired(broker) == [("disconnect", "Produce")] * 3


def test_a_dropped_request_times_out_and_is_repeated(broker: odradek.Broker, topic: str) -> None:
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    broker.faults.drop("Produce", topic=topic, when="after")
    began = time.monotonic()
    publish(servers, topic, [b"x"], request_timeout_ms=1000, socket_timeout_ms=1000, retry_backoff_ms=50)
    assert time.monotonic() - began > 0.9
    # Without idempotence the log has the repeated record twice: the broker processed the first request and sent no
    # reply.
    assert log_end(servers, topic) == 2


def test_a_fault_affects_only_the_named_client(broker: odradek.Broker, topic: str) -> None:
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    broker.faults.error("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None, client_id="unlucky")
    assert publish(servers, topic, [b"x"], client_id="lucky") == [0]
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": servers, "client.id": "unlucky", "log_level": 2})
    producer.produce(topic, b"y", on_delivery=lambda error, _: errors.append(error.code()))
    assert producer.flush(20) == 0
    assert errors == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    assert {fault.client_id for fault in broker.faults.fired} == {"unlucky"}


def test_a_fetch_error_is_temporary(broker: odradek.Broker, topic: str, group: str) -> None:
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    publish(servers, topic, numbers(3))
    broker.faults.error("Fetch", "NOT_LEADER_OR_FOLLOWER", times=2, topic=topic)
    assert read(servers, topic) == [0, 1, 2]
    assert fired(broker) == [("error", "Fetch")] * 2


def test_after_a_metadata_error_the_client_keeps_its_brokers(broker: odradek.Broker, topic: str) -> None:
    servers = broker.bootstrap_servers
    create_topic(servers, topic)
    broker.faults.error("Metadata", "LEADER_NOT_AVAILABLE", times=2, topic=topic)
    assert publish(servers, topic, [b"x"], retry_backoff_ms=20) == [0]
    assert ("error", "Metadata") in fired(broker)


def test_a_stop_does_not_wait_for_dropped_requests(topic: str) -> None:
    with odradek.Broker() as broker:
        create_topic(broker.bootstrap_servers, topic)
        broker.faults.drop("Heartbeat")
        with Wire(broker.bootstrap_servers) as wire:
            wire.send(12, 3, {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None})
            eventually(lambda: fired(broker))
            began = time.monotonic()
            broker.stop()
            assert time.monotonic() - began < 10
            assert wire.socket.recv(1) == b""


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda faults: faults.error("OfsetCommit", 16), "did you mean 'OffsetCommit'"),
        (lambda faults: faults.error("OffsetCommit", "NOT_COORDINATR"), "did you mean 'NOT_COORDINATOR'"),
        (lambda faults: faults.drop("Heartbeat", topic="t"), "have no topics to match"),
        (lambda faults: faults.delay("Fetch", -1), "0 s or more"),
        (lambda faults: faults.drop("Fetch", times=0), "1 or more"),
    ],
)
def test_an_impossible_fault_is_refused(broker: odradek.Broker, wrong: Callable[[Any], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong(broker.faults)


def test_the_control_channel_may_be_used_from_many_threads(broker: odradek.Broker) -> None:
    seen: list[int] = []

    def ask() -> None:
        seen.extend(broker.clock.now_ms() for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 80


# --- the pytest plugin ----------------------------------------------------------------------------------------------

pytest_plugins = ["pytester"]

SUITE = """
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

topics = []
pids = []

@pytest.mark.parametrize("n", [1, 2])
def test_topic(odradek_broker, odradek_topic, n):
    topics.append(odradek_topic)
    pids.append(odradek_broker.pid)
    client = AdminClient({"bootstrap.servers": odradek_broker.bootstrap_servers})
    metadata = client.list_topics(odradek_topic, timeout=10)
    assert len(metadata.topics[odradek_topic].partitions) == 3
    assert len(set(topics)) == n
    assert len(set(pids)) == 1

def test_leaves_a_fault(odradek_broker):
    odradek_broker.faults.error("Produce", "TOPIC_AUTHORIZATION_FAILED", times=None)

def test_finds_no_fault(odradek_broker):
    assert odradek_broker.faults.pending == []
    odradek_broker.kill()

def test_is_started_again(odradek_broker):
    assert odradek_broker.running
"""


def run_suite(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", *arguments)


def test_the_plugin_s_fixtures_give_a_broker_and_topics(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nodradek_config =\n    num.partitions=3\n    log.retention.hours = 1\n")
    pytester.makepyfile(SUITE)
    run_suite(pytester).assert_outcomes(passed=5)


def test_the_plugin_s_config_can_be_overridden(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="session")
        def odradek_broker_config():
            return {"num.partitions": 2, "auto.create.topics.enable": False}

        def test_partitions(odradek_broker, odradek_topic):
            assert (odradek_broker.data_dir / (odradek_topic + "-1")).is_dir()
        """
    )
    run_suite(pytester).assert_outcomes(passed=1)


def test_the_plugin_reports_errors_clearly(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nodradek_config = num.partition=3\n")
    pytester.makepyfile("def test_it(odradek_broker): ...")
    result = run_suite(pytester)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*did you mean 'num.partitions'*"])
    pytester.makepyfile(
        """
        import os, signal, time

        def test_it(odradek_broker):
            os.kill(odradek_broker.pid, signal.SIGKILL)
            while odradek_broker.running:
                time.sleep(0.01)
        """
    )
    pytester.makeini("[pytest]\n")
    result = run_suite(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*the broker ended by itself*"])


CLUSTER_SUITE = """
import os, signal
import odradek
import pytest

def test_it_serves(odradek_cluster):
    assert odradek_cluster.brokers == (1, 2)
    with odradek.Admin(odradek_cluster.bootstrap_servers) as admin:
        admin.create_topics([odradek.client.NewTopic("t", 2)])
        assert {part.leader for part in admin.describe_topics(["t"])["t"].partitions} == {1, 2}
        assert sorted(node.rack for node in admin.describe_cluster().nodes) == ["a", "b"]

def test_it_leaves_dead_and_paused_nodes(odradek_cluster):
    odradek_cluster.kill(1)
    odradek_cluster.pause("controller")

def test_it_runs_again(odradek_cluster, request):
    assert odradek_cluster.running()
    with odradek.Admin(odradek_cluster.bootstrap_servers) as admin:
        assert "t" in admin.describe_topics(["t"])

def test_a_failure_has_the_logs(odradek_cluster):
    odradek_cluster.kill("controller")
    odradek_cluster.start("controller")
    assert False

def test_a_node_ends_by_itself(odradek_cluster):
    pid = odradek_cluster.pid(2)
    os.kill(pid, signal.SIGKILL)
    while odradek_cluster.running(2):
        pass

@pytest.mark.parametrize("n", [1, 2])
def test_its_own_cluster(odradek_clusters, n, record_property):
    cluster = odradek_clusters(brokers=1, config={"num.partitions": 7})
    print("nodes", cluster.pid(1), cluster.pid("controller"))
    assert n == 1

def test_without_a_cluster():
    pass
"""


def test_the_plugin_s_clusters_serve_come_back_and_are_in_the_reports(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nodradek_cluster_brokers = 2\nodradek_cluster_racks = a b\n"
        "odradek_config =\n    broker.session.timeout.ms=3000\n"
    )
    pytester.makepyfile(CLUSTER_SUITE)
    result = run_suite(pytester)
    result.assert_outcomes(passed=6, failed=2, errors=1)
    output = result.stdout.str()
    first, _, rest = output.partition("test_its_own_cluster[2]")
    assert "log of odradek's controller" in first
    assert "node 2 ended by itself; the end of its log:" in output
    assert "log of odradek's controller" in rest
    found = re.search(r"^nodes (\d+) (\d+)$", rest, re.MULTILINE)
    assert found is not None
    assert not any(Path(f"/proc/{pid}").exists() for pid in found.groups())


def test_a_wrong_number_of_brokers_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(odradek_cluster): ...")
    for brokers, line in (
        ("many", "odradek_cluster_brokers is the number of brokers"),
        ("0", "brokers must be 1 to 99"),
    ):
        pytester.makeini(f"[pytest]\nodradek_cluster_brokers = {brokers}\n")
        result = run_suite(pytester)
        result.assert_outcomes(errors=1)
        result.stdout.fnmatch_lines([f"*{line}*"])
