"""Transactions of ``Producer``, ``Admin`` and ``odradek transactions`` on Odradek's broker and on Apache Kafka.

Without Java the tests on Apache Kafka are skipped. ODRADEK_TEST_BOOTSTRAP names another broker with transactions.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from support.brokers import Wire, eventually, kafka_with_transactions, unique
from support.insides import engine_of
from support.pages import DOCS, examples
from support.transactions import set_version

from odradek import Admin, Broker, Consumer, Producer, TopicPartition, aio
from odradek.batches.encode import encode_batch
from odradek.cli.main import run
from odradek.client import (
    ConsumerGroupMetadata,
    ErrorCode,
    KafkaError,
    NewTopic,
    PartitionReader,
    ProducerFenced,
    ProducerIdentity,
    TransactionAbortable,
    TransactionFatal,
)
from odradek.client.admin import transaction_operations
from odradek.client.config import as_config
from odradek.client.model import TransactionFilter
from odradek.core.effects import SimpleRecord
from odradek.wire.api_keys import PRODUCE, TXN_OFFSET_COMMIT

pytestmark = pytest.mark.slow
Capture = pytest.CaptureFixture[str]
QUICK = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 20}


@pytest.fixture(scope="module", params=["odradek", "apache"])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "odradek":
        with Broker(config={"group.initial.rebalance.delay.ms": "0"}) as own:
            with Wire(own.bootstrap_servers) as wire:
                if TXN_OFFSET_COMMIT not in wire.versions():
                    pytest.skip("this broker does not serve TxnOffsetCommit")
            yield own.bootstrap_servers
        return
    with kafka_with_transactions(tmp_path_factory.mktemp("kafka")) as bootstrap:
        yield bootstrap


@pytest.fixture
def admin(kafka: str) -> Iterator[Admin]:
    with Admin(kafka) as made:
        yield made


@pytest.fixture
def topic(admin: Admin) -> str:
    name = unique("transactions")
    admin.create_topics([NewTopic(name, 2, 1)])
    return name


@pytest.fixture(params=[2, 1])
def version(kafka: str, request: pytest.FixtureRequest) -> Iterator[int]:
    """Sets the cluster's transaction.version for a test. After the test it is 2."""
    set_version(kafka, request.param)
    yield request.param
    set_version(kafka, 2)


def wait_for_markers(kafka: str, topic: str) -> None:
    """Waits until no transaction is open: Kafka replies to EndTxn before it has written the markers."""
    with Admin(kafka) as admin:
        both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        eventually(lambda: all(one[5] is None for rows in admin.describe_producers(both).values() for one in rows))


def committed_values(kafka: str, topic: str) -> dict[int, list[bytes]]:
    """The values that confluent_kafka reads with read_committed, by partition."""
    wait_for_markers(kafka, topic)
    settings = {
        "bootstrap.servers": kafka, "group.id": "unused", "isolation.level": "read_committed",
        "auto.offset.reset": "earliest", "enable.partition.eof": True, "enable.auto.commit": False,
    }  # fmt: skip
    reader = confluent_kafka.Consumer(settings)
    reader.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(2)])
    found: dict[int, list[bytes]] = {0: [], 1: []}
    ends = 0
    while ends < 2:
        message = reader.poll(30)
        assert message is not None
        if message.error() is not None:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            ends += 1
            continue
        found[message.partition()].append(message.value())
    reader.close()
    return found


def test_committed_records_are_read_and_aborted_ones_are_not(kafka: str, topic: str, version: int) -> None:
    def fails(one: Producer, number: int) -> None:
        with one.transaction():
            one.send(topic, b"aborted %d" % number, partition=number % 2)
            one.flush()
            raise ZeroDivisionError

    with Producer(kafka, transactional_id=topic) as one:
        one.init_transactions()
        for number in range(10):
            with one.transaction():
                one.send(topic, b"%d" % number, partition=0)
                one.send(topic, b"%d" % number, partition=1)
            if number % 3 == 0:
                with pytest.raises(ZeroDivisionError):
                    fails(one, number)
        assert engine_of(one).transaction.version == version  # the protocol in use
    expected = [b"%d" % number for number in range(10)]
    assert committed_values(kafka, topic) == {0: expected, 1: expected}


def test_record_batches_are_part_of_a_transaction(kafka: str, topic: str) -> None:
    import pyarrow as pa

    rows = pa.record_batch({"value": [b"%d" % n for n in range(5_000)], "partition": [n % 2 for n in range(5_000)]})
    with Producer(kafka, transactional_id=topic, batch_size=4_096) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send_batch(topic, rows.slice(0, 2_000))
        one.flush()
        one.abort_transaction()
        with one.transaction():
            one.send_batch(topic, rows)
    found = committed_values(kafka, topic)
    assert {p: [int(v) for v in values] for p, values in found.items()} == {
        p: list(range(p, 5_000, 2)) for p in range(2)
    }


def test_an_aborted_transaction_over_several_segments_is_not_read(kafka: str, admin: Admin, topic: str) -> None:
    """Two transactions overlap in four segments: one is aborted, one committed, and plain records are between them."""
    admin.alter_topic_configs(topic, {"segment.bytes": "1048576", "max.message.bytes": "200000"})
    tp = TopicPartition(topic, 0)
    with (
        Producer(kafka, transactional_id=f"{topic}-a", batch_size=1) as aborted,
        Producer(kafka, transactional_id=f"{topic}-b", batch_size=1) as kept,
        Producer(kafka, batch_size=1) as plain,
    ):
        for one in (aborted, kept):
            one.init_transactions()
            one.begin_transaction()
        for number in range(12):
            for one, name in ((aborted, b"aborted"), (kept, b"kept"), (plain, b"plain")):
                one.send(topic, b"%s %d " % (name, number) + b"x" * 100_000, partition=0)
                one.flush()
        aborted.abort_transaction()
        kept.commit_transaction()
    expected = [b"%s %d" % (name, number) for number in range(12) for name in (b"kept", b"plain")]
    wait_for_markers(kafka, topic)
    for limit in (1, 250_000, 4_194_304):
        with Consumer(
            kafka, isolation_level="read_committed", max_partition_fetch_bytes=limit, **QUICK
        ) as reader:  # fmt: skip
            reader.assign([tp])
            end, found = reader.end_offsets([tp])[tp], []
            while reader.position(tp) < end:
                found += [record.value.rpartition(b" ")[0] for record in reader.poll(1.0).records()]
        assert found == expected
    committed = PartitionReader(as_config(kafka), tp, isolation_level="read_committed")
    assert [row.value.rpartition(b" ")[0] for row in committed.read_rows(0, end)] == expected


@pytest.mark.parametrize("protocol", ["classic", "consumer", "assign"])
def test_offsets_of_a_group_are_part_of_a_transaction(
    kafka: str, admin: Admin, topic: str, version: int, protocol: str
) -> None:
    """A static member, with either group protocol, or a consumer that is no member commits the offsets."""
    group, tp = unique("group"), TopicPartition(topic, 0)
    settings: dict[str, Any] = {} if protocol == "assign" else {"group_protocol": protocol, "group_instance_id": "one"}
    with (
        Producer(kafka, transactional_id=topic) as one,
        Consumer(kafka, group_id=group, **(QUICK | settings)) as reader,
    ):
        one.init_transactions()
        assert reader.group_metadata() == ConsumerGroupMetadata(group, -1, "", settings.get("group_instance_id"))
        if protocol == "assign":
            reader.assign([tp])
        else:
            reader.subscribe([topic])
            eventually(lambda: (reader.poll(0.2), reader.assignment())[1])
        own = reader.group_metadata()
        assert (own.group_id, own.instance_id) == (group, settings.get("group_instance_id"))
        assert (own.generation > 0, own.member_id != "") == ((False, False) if protocol == "assign" else (True, True))
        one.begin_transaction()
        one.send_offsets_to_transaction({tp: 3}, own)
        assert admin.list_group_offsets(group) == {}
        one.abort_transaction()
        assert admin.list_group_offsets(group) == {}
        with one.transaction():
            one.send(topic, b"1", partition=0)
            one.send_offsets_to_transaction({tp: 4}, own)
        assert eventually(lambda: admin.list_group_offsets(group))[tp].offset == 4
        if protocol == "assign":
            return
        one.begin_transaction()
        old = own._replace(generation=own.generation - 1) if protocol == "classic" else own._replace(member_id="other")
        with pytest.raises(TransactionAbortable, match="offsets of group"):
            one.send_offsets_to_transaction({tp: 5}, old)
        one.abort_transaction()
        assert admin.list_group_offsets(group)[tp].offset == 4


def test_a_second_producer_fences_the_first(kafka: str, topic: str, version: int) -> None:
    with Producer(kafka, transactional_id=topic) as first, Producer(kafka, transactional_id=topic) as second:
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, b"of the first", partition=0)
        first.flush()
        second.init_transactions()
        with second.transaction():
            second.send(topic, b"of the second", partition=0)
        with pytest.raises(ProducerFenced, match="in use by a newer producer") as raised:
            first.commit_transaction()
        assert raised.value.fatal
        with pytest.raises(ProducerFenced):
            first.begin_transaction()
    assert committed_values(kafka, topic)[0] == [b"of the second"]


def test_a_transaction_that_times_out_is_aborted_and_ends_the_producer(kafka: str, topic: str) -> None:
    with Producer(kafka, transactional_id=topic, transaction_timeout_ms=1_000) as one, Admin(kafka) as admin:
        one.init_transactions()
        one.begin_transaction()
        one.send(topic, b"late", partition=0)
        one.flush()
        eventually(lambda: admin.describe_transactions([topic])[topic].state == "CompleteAbort", within_s=60)
        with pytest.raises(TransactionFatal, match=r"transaction_timeout_ms|may have timed out"):
            one.commit_transaction()
    with (
        Producer(kafka, transactional_id=topic, transaction_timeout_ms=10**9) as one,
        pytest.raises(TransactionFatal, match=r"above the broker's transaction\.max\.timeout\.ms"),
    ):
        one.init_transactions()


def test_a_record_that_failed_makes_the_commit_fail(kafka: str, admin: Admin, topic: str, version: int) -> None:
    admin.alter_topic_configs(topic, {"max.message.bytes": "2000"})
    with Producer(kafka, transactional_id=topic, batch_size=100) as one:
        one.init_transactions()
        one.begin_transaction()
        for number in range(20):
            one.send(topic, b"x" * (5_000 if number == 10 else 10), partition=0)
        with pytest.raises(TransactionAbortable, match="MESSAGE_TOO_LARGE"):
            one.commit_transaction()
        one.abort_transaction()
        with one.transaction():
            one.send(topic, b"small", partition=0)
    assert committed_values(kafka, topic)[0] == [b"small"]


def test_the_protocol_follows_the_feature_between_transactions(kafka: str, topic: str) -> None:
    set_version(kafka, 1)
    try:
        with Producer(kafka, transactional_id=topic, metadata_max_age_ms=0) as one:
            one.init_transactions()
            seen = []
            for number in range(4):
                with one.transaction():
                    one.send(topic, b"%d" % number, partition=0)
                    one.flush()
                    set_version(kafka, 2 if number < 2 else 1)
                    one.send(topic, b"%d more" % number, partition=0)
                seen.append(engine_of(one).transaction.version)  # the protocol in use
    finally:
        set_version(kafka, 2)
    assert seen == [1, 2, 2, 1]
    expected = [text for number in range(4) for text in (b"%d" % number, b"%d more" % number)]
    assert committed_values(kafka, topic)[0] == expected


def test_the_asyncio_clients_copy_records_in_transactions(kafka: str, topic: str) -> None:
    group = unique("group")

    async def copy() -> None:
        async with (
            aio.Producer(kafka, transactional_id=topic) as one,
            aio.Consumer(kafka, group_id=group, **QUICK) as r,
        ):
            await one.init_transactions()
            async with one.transaction():
                await one.send(topic, b"in", partition=0)
            await r.subscribe([topic])
            while not (records := list((await r.poll(1.0)).records())):
                pass
            async with one.transaction():
                await one.send(topic, records[0].value, partition=1)
                tp = TopicPartition(topic, 0)
                await one.send_offsets_to_transaction({tp: 1}, r.group_metadata())
        async with aio.Admin(kafka) as admin:
            assert (await admin.list_group_offsets(group))[tp].offset == 1
            assert (await admin.describe_transactions([topic]))[topic].state == "CompleteCommit"
            assert [row.transactional_id for row in await admin.list_transactions(pattern=topic)] == [topic]
            assert len((await admin.describe_producers([tp]))[tp]) == 1
            assert (await admin.fence_producers([topic]))[topic].producer_epoch > 0
            assert await admin.find_hanging_transactions([tp]) == []

    asyncio.run(copy())
    assert committed_values(kafka, topic) == {0: [b"in"], 1: [b"in"]}


# --- Admin and the tool -------------------------------------------------------------------------------------------


@pytest.fixture
def hanging(kafka: str, admin: Admin, topic: str) -> Iterator[TopicPartition]:
    """A partition with an open transaction, from offset 0 on, that no coordinator knows."""
    admin.alter_configs("broker", "1", {"transaction.partition.verification.enable": "false"})

    def is_written() -> bool:
        hour_ago_ms = int(time.time() * 1000) - 3_600_000
        batch = encode_batch(
            [SimpleRecord(b"k", b"v")], now_ms=hour_ago_ms, producer_id=77_000, producer_epoch=3, base_sequence=0,
            transactional=True,
        )  # fmt: skip
        message = {
            "transactional_id": f"no-{topic}", "acks": -1, "timeout": 5_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
        }  # fmt: skip
        with Wire(kafka) as wire:
            return wire.call(PRODUCE, 11, message).responses[0].partition_responses[0].error_code is ErrorCode.none

    try:
        eventually(is_written)  # the setting takes effect a little later
        yield TopicPartition(topic, 0)
    finally:
        admin.alter_configs("broker", "1", {"transaction.partition.verification.enable": None})


def test_transactions_are_described_before_during_and_after_their_markers(kafka: str, admin: Admin, topic: str) -> None:
    with Producer(kafka, transactional_id=topic, transaction_timeout_ms=50_000) as one:
        one.init_transactions()
        idle = admin.describe_transactions([topic])[topic]
        assert (idle.state, idle.timeout_ms, idle.start_ms, idle.partitions) == ("Empty", 50_000, None, ())
        before_ms = int(time.time() * 1000) - 1_000
        one.begin_transaction()
        one.send(topic, b"1", partition=1)
        one.flush()
        tp = TopicPartition(topic, 1)
        busy = admin.describe_transactions([topic])[topic]
        assert (busy.state, busy.partitions, busy.producer_id) == ("Ongoing", (tp,), idle.producer_id)
        assert before_ms < (busy.start_ms or 0) < before_ms + 60_000
        producer = admin.describe_producers([tp])[tp][0]
        assert producer[:3] == (busy.producer_id, busy.producer_epoch, 0)
        assert producer.transaction_start_offset == 0
        assert [row.transactional_id for row in admin.list_transactions(states=["Ongoing"], pattern=topic)] == [topic]
        assert admin.list_transactions(states=["Empty"], pattern=topic) == []
        assert admin.list_transactions(duration_ms=600_000, pattern=topic) == []
        assert len(admin.list_transactions(producer_ids=[busy.producer_id])) == 1
        assert admin.find_hanging_transactions([tp], max_timeout_ms=-1) == [], "the coordinator knows the transaction"
        one.commit_transaction()
        eventually(lambda: admin.describe_producers([tp])[tp][0][4:] == (0, None))  # the marker is written
    with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_NOT_FOUND"):
        admin.describe_transactions([f"no-{topic}"])
    with pytest.raises(ValueError, match="unknown transaction state 'Sleeping'"):
        admin.list_transactions(states=["Sleeping"])


def test_a_hanging_transaction_is_found_and_aborted(admin: Admin, hanging: TopicPartition) -> None:
    found = admin.find_hanging_transactions([hanging])
    assert [(one.partition, one.producer.producer_id, one.producer.transaction_start_offset) for one in found] == [
        (hanging, 77_000, 0)
    ]
    with pytest.raises(KafkaError, match=r"INVALID_PRODUCER_EPOCH.*newer epoch than 2"):
        admin.abort_transaction(hanging, ProducerIdentity(77_000, 2), 0)
    admin.abort_transaction(hanging, ProducerIdentity(77_000, 3), 0)
    assert admin.find_hanging_transactions([hanging]) == []
    assert admin.list_offsets({hanging: -1}, isolation_level="read_committed")[hanging].offset == 2


def test_a_transaction_that_ends_during_the_search_is_not_hanging(
    kafka: str, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transaction ends after the partitions are described and before the coordinators are asked."""
    tp = TopicPartition(topic, 0)
    list_transactions = transaction_operations.list_transactions

    def is_closed() -> bool:
        with Admin(kafka) as other:
            return other.describe_producers([tp])[tp][0].transaction_start_offset is None

    with Producer(kafka, transactional_id=topic) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send(topic, b"1", partition=0)
        one.flush()
        named = []

        async def list_after_the_end(cluster: Any, wanted: TransactionFilter) -> Any:
            def end() -> None:
                one.commit_transaction()
                eventually(is_closed)

            # in another thread, because this loop also serves the producer
            await asyncio.to_thread(end)
            named.append(wanted.producer_ids)
            return await list_transactions(cluster, wanted)

        monkeypatch.setattr(transaction_operations, "list_transactions", list_after_the_end)
        assert admin.find_hanging_transactions([tp], max_timeout_ms=-60_000) == []
    assert len(named) == 1, "the transaction was open when the partition was described"


def output(capsys: Capture, *arguments: str) -> str:
    assert run(["transactions", *arguments]) == 0
    return capsys.readouterr().out


def test_the_tool_finds_and_aborts_a_hanging_transaction(kafka: str, hanging: TopicPartition, capsys: Capture) -> None:
    topic, where = hanging.topic, ("--topic", hanging.topic, "-b", kafka)
    lines = output(capsys, "find-hanging", *where).splitlines()
    assert lines[0].split() == [
        "Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp",
        "Duration(min)",
    ]  # fmt: skip
    row = lines[1].split()
    assert (*row[:6], row[7]) == (topic, "0", "77000", "3", "-1", "0", "60")
    assert len(output(capsys, "find-hanging", "--max-transaction-timeout", "600", *where).splitlines()) == 1
    there = (*where, "--partition", "0")
    for arguments, text in (
        (["--start-offset", "9"], "no open transaction of .* starts at offset 9: its open transactions start at 0"),
        ([], "missing option '--start-offset'"),
        (["--producer-id", "7"], "missing option '--producer-epoch', which --producer-id needs"),
        (["--start-offset", "0"], "Abort the transaction of producer 77000 .epoch 3.* add --yes"),
    ):
        assert run(["transactions", "abort", *there, *arguments]) == 2
        assert re.search(text, capsys.readouterr().err)
    assert "77000" in output(capsys, "describe-producers", *there)
    assert "Aborted the transaction of producer 77000" in output(
        capsys, "abort", *there, "--start-offset", "0", "--yes"
    )
    assert json.loads(output(capsys, "find-hanging", *where, "--json")) == []


def test_the_tool_lists_describes_and_terminates(kafka: str, topic: str, capsys: Capture) -> None:
    with Producer(kafka, transactional_id=topic) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send(topic, b"1", partition=0)
        one.flush()
        lines = output(capsys, "list", "--transactional-id-pattern", topic, "-b", kafka).splitlines()
        assert lines[0].split() == ["TransactionalId", "Coordinator", "ProducerId", "TransactionState"]
        assert lines[1].split()[0::3] == [topic, "Ongoing"]
        lines = output(capsys, "describe", "--transactional-id", topic, "-b", kafka).splitlines()
        assert lines[0].split() == [
            "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState",
            "TransactionTimeoutMs", "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions",
        ]  # fmt: skip
        assert lines[1].split()[1::3] == [topic, "Ongoing", lines[1].split()[7]]
        assert lines[1].split()[8] == f"{topic}-0"
        described = json.loads(output(capsys, "describe", "--transactionalId", topic, "-b", kafka, "--json"))
        assert described["partitions"] == [{"topic": topic, "partition": 0}]
        assert run(["transactions", "force-terminate", "--transactional-id", topic, "-b", kafka]) == 2
        assert "whose transaction is Ongoing" in capsys.readouterr().err
        line = output(capsys, "force-terminate", "--transactional-id", topic, "--yes", "-b", kafka)
        assert f"Fenced the producers of {topic}" in line
        with pytest.raises(ProducerFenced):
            one.commit_transaction()
    described = json.loads(output(capsys, "describe", "--transactional-id", topic, "-b", kafka, "--json"))
    assert (described["state"], described["start_ms"]) == ("Empty", None)
    assert run(["transactions", "force-terminate", "--transactional-id", f"no-{topic}", "--yes", "-b", kafka]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_the_examples_of_the_client_page_print_their_output(kafka: str) -> None:
    """The test runs the examples of the section on transactions. The page's own test runs the others, on Odradek's
    broker."""
    found = [one for one in examples(DOCS / "client.md") if one.needs == "transactions"]
    assert found
    namespace: dict[str, Any] = {"__name__": "page", "bootstrap": kafka}
    for example in found:
        example.check(namespace)
