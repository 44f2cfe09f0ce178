"""The pytest plugin's topics with records, clients, assertions about offsets, log in reports, and shared broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import odradek
from odradek.testing.offset_assertions import OffsetAssertions
from odradek.testing.seed_records import send_records

pytest_plugins = ["pytester"]
COLUMNS = ["key", "value", "offset", "timestamp"]


def run_suite(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "no:cacheprovider", "--strict-markers", *arguments)


@pytest.fixture(scope="module")
def broker() -> Iterator[odradek.Broker]:
    with odradek.Broker(config={"num.partitions": 1}) as broker:
        yield broker


@pytest.fixture
def offsets(broker: odradek.Broker) -> Iterator[OffsetAssertions]:
    with OffsetAssertions(broker.bootstrap_servers) as offsets:
        yield offsets


def commit(broker: odradek.Broker, group: str, topic: str, **offsets: int) -> None:
    with odradek.Admin(broker.bootstrap_servers) as admin:
        commits = {odradek.TopicPartition(topic, int(name[1:])): offset for name, offset in offsets.items()}
        admin.alter_group_offsets(group, commits)


def test_records_of_every_form_are_sent(broker: odradek.Broker) -> None:
    broker.create_topic("forms", 2)
    rich = {"value": b"v", "key": "k", "headers": {"h": b"1"}, "partition": 1, "timestamp": 1234}
    send_records(broker.bootstrap_servers, "forms", [{"value": "ü", "partition": 0}, rich])
    send_records(broker.bootstrap_servers, "forms", (one for one in [("k", None)]))
    texts = {"value": "t", "headers": {"shop": "kávé", "empty": "", "none": None}}
    pairs = {"value": "p", "headers": [("a", "1"), ("a", b"2")]}
    send_records(broker.bootstrap_servers, "forms", [texts, pairs, {"value": "n", "headers": None}])
    settings: Any = {"group_id": "forms", "auto_offset_reset": "earliest", "columns": [*COLUMNS, "headers"]}
    with odradek.Consumer(broker.bootstrap_servers, **settings) as consumer:
        consumer.subscribe(["forms"])
        records = []
        while len(records) < 6:
            records += consumer.poll(10.0).records()
    of_value = {one.value: one.headers for one in records}
    assert of_value[b"t"] == (("shop", "kávé".encode()), ("empty", b""), ("none", None)), "texts are sent as UTF-8"
    assert (of_value[b"p"], of_value[b"n"]) == ((("a", b"1"), ("a", b"2")), ())
    records = [one for one in records if one.value not in (b"t", b"p", b"n")]
    seen = {(one.key, one.value, one.headers) for one in records}
    assert {(None, "ü".encode(), ()), (b"k", b"v", (("h", b"1"),)), (b"k", None, ())} == seen
    (timed,) = [one for one in records if one.value == b"v"]
    assert (timed.partition, timed.timestamp_ms) == (1, 1234)


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ({"val": b"x"}, "record 1 has the field 'val'"),
        (7, "record 1: the value is bytes, a text or None, not int"),
        ((1, b"x"), "record 1: the key is"),
        ({"headers": {"h": 7}}, "record 1: the header 'h' is bytes, a text or None, not int"),
        ({"headers": "h"}, "record 1: the headers are a mapping or a list of pairs, not 'h'"),
        ({"headers": {b"h": b"1"}}, "record 1: the name of a header is a text, not b'h'"),
    ],
)
def test_a_record_of_another_form_is_refused_before_any_is_sent(
    broker: odradek.Broker, record: object, error: str, offsets: OffsetAssertions
) -> None:
    broker.create_topic(name := f"refused-{abs(hash(error))}")
    with pytest.raises(TypeError, match=error):
        send_records(broker.bootstrap_servers, name, [b"fine", record])
    assert offsets.lag("none", name) == {0: 0}


@pytest.mark.parametrize("records", [5, "abc", b"abc", {"value": b"a"}])
def test_one_value_in_place_of_a_list_of_records_is_refused(broker: odradek.Broker, records: object) -> None:
    """The letters of a text, or the names of a mapping, were sent as records."""
    with pytest.raises(TypeError, match=r"^records is a list of records, not .*: write records=\["):
        send_records(broker.bootstrap_servers, "none", records)  # type: ignore[arg-type]


def test_committed_offsets_are_compared_by_partition(broker: odradek.Broker, offsets: OffsetAssertions) -> None:
    broker.create_topic("compared", 3)
    commit(broker, "compared", "compared", p0=2, p2=5)
    offsets.assert_committed("compared", "compared", {2: 5, 0: 2})
    with pytest.raises(AssertionError) as raised:
        offsets.assert_committed("compared", "compared", {0: 2, 1: 1, 2: 6})
    assert str(raised.value).splitlines()[1:] == [
        "  compared-1: committed -, expected 1",
        "  compared-2: committed 5, expected 6",
    ]
    with pytest.raises(AssertionError, match="compared-2: committed 5, expected -"):
        offsets.assert_committed("compared", "compared", {0: 2})
    with pytest.raises(AssertionError, match="compared-0: committed -, expected 1"):
        offsets.assert_committed("a group that does not exist", "compared", {0: 1})
    with pytest.raises(ValueError, match="has 3 partitions"):
        offsets.assert_committed("compared", "compared", 2)


def test_lag_counts_partitions_without_a_commit_and_deleted_records(
    broker: odradek.Broker, offsets: OffsetAssertions
) -> None:
    broker.create_topic("behind", 2)
    send_records(broker.bootstrap_servers, "behind", [{"value": b"x", "partition": part} for part in (0, 0, 0, 1, 1)])
    assert offsets.lag("behind", "behind") == {0: 3, 1: 2}
    commit(broker, "behind", "behind", p0=1)
    with odradek.Admin(broker.bootstrap_servers) as admin:
        admin.delete_records({odradek.TopicPartition("behind", 0): 2})
    assert offsets.lag("behind", "behind") == {0: 1, 1: 2}
    offsets.wait_for_lag("behind", "behind", 3)
    with pytest.raises(AssertionError) as raised:
        offsets.wait_for_lag("behind", "behind", timeout_s=0.05)
    assert str(raised.value).splitlines() == [
        "group 'behind' has a lag of 3 on behind after 0.05 s, not 0:",
        "  behind-0: lag 1, committed 1",
        "  behind-1: lag 2, committed -",
    ]


def test_the_fixtures_work_together(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        pytestmark = pytest.mark.odradek_consumer(max_poll_records=2, group_id="of-the-module")

        @pytest.mark.odradek_topic(partitions=2, config={"retention.ms": "1000"}, records=[("a", "1"), ("b", "2")])
        @pytest.mark.odradek_producer(linger_ms=3)
        @pytest.mark.odradek_consumer(group_id="billing")
        def test_all(odradek_topic, odradek_producer, odradek_consumer, odradek_offsets):
            assert odradek_producer.producer_config.linger_ms == 3
            odradek_producer.send(odradek_topic, b"3", key=b"c", headers={"shop": b"1"})
            odradek_producer.flush()
            values, headers = set(), set()
            while len(values) < 3:
                polled = odradek_consumer.poll(10.0)
                assert len(polled) <= 2
                values |= {record.value for record in polled.records()}
                headers |= {record.headers for record in polled.records()}
                odradek_consumer.commit(polled.next_offsets)
            assert headers == {(), (("shop", b"1"),)}
            odradek_offsets.wait_for_lag("billing", odradek_topic)
            assert sum(odradek_offsets.committed("billing", odradek_topic).values()) == 3

        def test_two_topics(odradek_topics, odradek_offsets):
            first, second = odradek_topics(records=["one"]), odradek_topics()
            assert first != second
            assert odradek_offsets.lag("none", first) == {0: 1}
            assert odradek_offsets.lag("none", second) == {0: 0}

        @pytest.mark.parametrize("attempt", [1, 2])
        @pytest.mark.odradek_topic(name="orders", partitions=2, records=["one"])
        def test_a_fixed_name(odradek_topic, odradek_consumer, odradek_offsets, odradek_broker, attempt):
            assert odradek_topic == "orders"
            assert sorted(odradek_offsets.lag("of-the-module", "orders").values()) == [0, 1]
            assert odradek_offsets.committed("of-the-module", "orders") == {}, "offsets of the attempt before"
            while not (polled := odradek_consumer.poll(10)):
                pass
            odradek_consumer.commit(polled.next_offsets)
            assert sum(odradek_offsets.committed("of-the-module", "orders").values()) == 1

        def test_a_name_that_is_left_from_before(odradek_broker, odradek_topics, odradek_offsets):
            odradek_broker.create_topic("left", 1)
            assert odradek_topics(name="left", partitions=3) == "left"
            assert odradek_offsets.lag("none", "left") == {0: 0, 1: 0, 2: 0}
            odradek_broker.kill()

        @pytest.mark.odradek_topic(partition=2)
        def test_typo(odradek_topic):
            pass

        @pytest.mark.odradek_consumer("billing")
        def test_no_name(odradek_consumer):
            pass
        """
    )
    done = run_suite(pytester)
    done.assert_outcomes(passed=5, errors=2)
    done.stdout.fnmatch_lines(
        [
            "E*TypeError: the marker odradek_topic has no partition; it has partitions, config, records, name",
            "E*TypeError: the marker odradek_consumer takes settings by name, *, not 'billing'",
        ]
    )


def test_a_failed_assertion_ends_at_the_line_of_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.odradek_topic(records=["one"])
        @pytest.mark.parametrize("call", ["assert_committed", "wait_for_lag"])
        def test_offsets(odradek_topic, odradek_offsets, call):
            if call == "assert_committed":
                odradek_offsets.assert_committed("billing", odradek_topic, 1)
            odradek_offsets.wait_for_lag("billing", odradek_topic, timeout_s=0.2)
        """
    )
    done = run_suite(pytester)
    done.assert_outcomes(failed=2)
    done.stdout.fnmatch_lines([">*odradek_offsets.assert_committed(*", "E*has committed other offsets:"])
    done.stdout.fnmatch_lines([">*odradek_offsets.wait_for_lag(*", "E*has a lag of 1 on *"])
    done.stdout.no_fnmatch_line("*raise AssertionError*")


LOGGED = """
import socket

def unreadable(broker):
    host, port = broker.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(b"\\xff" * 64)
        raw.settimeout(10)
        while raw.recv(100):
            pass

def test_passes(odradek_broker):
    unreadable(odradek_broker)

def test_fails(odradek_broker):
    unreadable(odradek_broker)
    assert False

def test_fails_without_a_line(odradek_broker):
    assert False
"""


def test_the_report_of_a_failed_test_has_the_lines_of_its_time_in_the_broker_s_log(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(LOGGED)
    result = run_suite(pytester)
    result.assert_outcomes(passed=1, failed=2)
    lines = result.stdout.lines
    headings = [number for number, line in enumerate(lines) if "odradek broker's log" in line]
    assert len(headings) == 1, "only the test with a line in the log"
    assert "closing the connection from /127.0.0.1" in lines[headings[0] + 1]
    assert sum("closing the connection" in line for line in lines) == 1


SHARED = """
import pytest, time
from pathlib import Path
import odradek
from odradek.testing.broker import BrokerFailed

@pytest.mark.parametrize("number", range(4))
def test_address(odradek_broker, odradek_topic, odradek_offsets, worker_id, number):
    Path(f"{worker_id}-{number}").write_text(odradek_broker.bootstrap_servers)
    assert odradek_offsets.lag("none", odradek_topic) == {0: 0, 1: 0}
    time.sleep(0.05)

def test_refusals(odradek_broker):
    for disturbs in (odradek_broker.kill, odradek_broker.stop, odradek_broker.clock.now_ms):
        with pytest.raises(BrokerFailed, match="all worker processes share this broker"):
            disturbs()
    with pytest.raises(BrokerFailed):
        odradek_broker.faults.error("Produce", "UNKNOWN_SERVER_ERROR")
    with pytest.raises(ValueError, match="num.nothing"):
        odradek_broker.create_topic("wrong", config={"num.nothing": 1})
"""


def test_workers_share_one_broker_on_request(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nodradek_shared_broker = true\nodradek_config = num.partitions=2\n")
    pytester.makepyfile(SHARED)
    run_suite(pytester, "-n", "2").assert_outcomes(passed=5)
    seen = {path.name.split("-")[0]: path.read_text() for path in pytester.path.glob("gw*")}
    assert len(seen) == 2, "both workers ran a test"
    assert len(set(seen.values())) == 1


def test_a_shared_broker_takes_no_settings_from_a_fixture(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nodradek_shared_broker = true\n")
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def odradek_broker_config():
            return {"num.partitions": "2"}
        """
    )
    pytester.makepyfile("def test_it(odradek_broker): ...")
    result = run_suite(pytester, "-n", "1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*set odradek_config in the ini file*"])
