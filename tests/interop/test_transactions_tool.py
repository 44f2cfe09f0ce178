"""Apache Kafka's ``kafka-transactions`` and ``kafka-features`` with the broker, beside ``odradek transactions``."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout

import pytest
from support.brokers import RunningBroker, Wire
from support.jvm import KafkaTools
from support.publish import create_topic
from support.transactions import RawProducer, produce

from odradek.batches.encode import encode_batch
from odradek.cli.main import run
from odradek.core.effects import SimpleRecord

pytestmark = pytest.mark.slow
Tool = Callable[..., str]


@pytest.fixture
def unverified(own_broker: Callable[..., RunningBroker]) -> str:
    """A broker that appends transactional batches without asking the coordinator about their transactions."""
    return own_broker(transaction_partition_verification_enable="false").bootstrap


@pytest.fixture
def tool(unverified: str, kafka_tools: KafkaTools) -> Tool:
    def run_tool(*arguments: str) -> str:
        name = "org.apache.kafka.tools.TransactionsCommand"
        done = kafka_tools.run(name, "--bootstrap-server", unverified, *arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout

    return run_tool


@pytest.fixture
def wire(unverified: str) -> Iterator[Wire]:
    with Wire(unverified) as connection:
        yield connection


def ours(bootstrap: str, *arguments: str) -> str:
    printed, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(errors):
        code = run(["transactions", *arguments, "-b", bootstrap])
    assert code == 0, f"{arguments}: {errors.getvalue()}"
    return printed.getvalue() + errors.getvalue()


def rows(table: str) -> list[list[str]]:
    """The rows below the heading."""
    lines = [line.split() for line in table.splitlines() if line.strip()]
    start = next((n for n, line in enumerate(lines) if line[0] in ("Topic", "TransactionalId", "CoordinatorId",
                                                                   "ProducerId")), len(lines))  # fmt: skip
    return lines[start + 1 :]


def hang(wire: Wire, topic: str, producer_id: int) -> None:
    """An open transaction that began an hour ago and that no coordinator knows."""
    batch = encode_batch(
        [SimpleRecord(b"k", b"v")], now_ms=time.time_ns() // 1_000_000 - 3_600_000, producer_id=producer_id,
        producer_epoch=3, base_sequence=0, transactional=True,
    )  # fmt: skip
    assert produce(wire, topic, 0, batch, f"no-{topic}", 11) == "none"


def test_both_tools_find_and_abort_a_hanging_transaction(tool: Tool, unverified: str, wire: Wire, topic: str) -> None:
    create_topic(unverified, topic)
    where = ("--topic", topic, "--partition", "0")

    def both(*search: str) -> list[list[str]]:
        """The hanging transactions that each tool finds, without the time of the last write: the tools print it in
        different formats."""
        search = search or where
        theirs = [[*row[:6], row[-1]] for row in rows(tool("find-hanging", *search))]
        assert [[*row[:6], row[-1]] for row in rows(ours(unverified, "find-hanging", *search))] == theirs
        return theirs

    assert both() == []
    hang(wire, topic, 77_000)
    hanging = [[topic, "0", "77000", "3", "-1", "0", "60"]]
    assert both() == hanging
    for search in (("--topic", topic), ("--broker-id", "1"), ("--broker-id", "1", *where)):
        assert both(*search) == hanging
    assert both(*where, "--max-transaction-timeout", "59") == hanging
    assert both(*where, "--max-transaction-timeout", "61") == []
    tool("abort", *where, "--start-offset", "0")
    assert both() == []
    hang(wire, topic, 77_001)
    assert both() == [[topic, "0", "77001", "3", "-1", "2", "60"]]
    assert "Aborted" in ours(unverified, "abort", *where, "--start-offset", "2", "--yes")
    assert both() == []
    hang(wire, topic, 77_002)
    tool("abort", *where, "--producer-id", "77002", "--producer-epoch", "3", "--coordinator-epoch", "0")
    assert both() == []


def test_the_tool_lists_describes_and_terminates(tool: Tool, unverified: str, wire: Wire, topic: str) -> None:
    create_topic(unverified, topic)
    one = RawProducer(wire, topic).started()
    assert one.send(topic, "v") == "none"
    (row,) = rows(tool("list"))
    assert row == [topic, "1", str(one.producer_id), "Ongoing"]
    assert rows(ours(unverified, "list")) == [row]
    assert rows(tool("list", "--duration-filter", "600000")) == []
    assert rows(tool("list", "--transactional-id-pattern", f"{topic}.*")) == [row]
    assert rows(tool("list", "--transactional-id-pattern", "no.*")) == []
    (described,) = rows(tool("describe", "--transactional-id", topic))
    assert described[:6] == ["1", topic, str(one.producer_id), str(one.epoch), "Ongoing", "60000"]
    assert described[-1] == f"{topic}-0"
    (producer,) = rows(tool("describe-producers", "--topic", topic, "--partition", "0"))
    assert producer[:2] == [str(one.producer_id), str(one.epoch)]
    assert rows(tool("describe-producers", "--topic", topic, "--partition", "0", "--broker-id", "1")) == [producer]
    assert rows(ours(unverified, "describe-producers", "--topic", topic, "--partition", "0"))[0][:2] == producer[:2]
    tool("forceTerminateTransaction", "--transactionalId", topic)
    assert one.end() in ("invalid_producer_epoch", "producer_fenced")
    (row,) = rows(tool("list"))
    assert row[-1] == "CompleteAbort" or row[-1] == "Empty"


def test_the_features_tool_changes_the_version(
    unverified: str, kafka_tools: KafkaTools, wire: Wire, topic: str
) -> None:
    create_topic(unverified, topic)

    def features(*arguments: str) -> str:
        done = kafka_tools.run("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", unverified, *arguments)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    def level() -> str:
        (line,) = [line for line in features("describe").splitlines() if "transaction.version" in line]
        return line.partition("FinalizedVersionLevel:")[2].split()[0]

    assert level() == "2"
    for number in (0, 1, 2):
        command = "upgrade" if number else "downgrade"
        features(command, "--feature", f"transaction.version={number}")
        assert level() == str(number)
        used = 2 if number == 2 else 0
        one = RawProducer(wire, f"{topic}-{number}", level=used).started()
        if used == 0:
            assert one.add(topic) == {0: "none"}
        assert (one.send(topic, str(number)), one.end()) == ("none", "none")
