"""Apache Kafka's own tool reads the files of our transactions: markers, indexes of aborted transactions, snapshots."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from support.brokers import Wire, eventually
from support.jvm import KafkaTools
from support.logs import T0, open_log, put, sequenced
from support.transactions import RawProducer, create_topic

import odradek
from odradek.batches.rows import iter_records
from odradek.codecs.transaction_state import decode
from odradek.core.ids import EndTransactionMarker
from odradek.storage.log import Log
from odradek.wire.api_keys import UPDATE_FEATURES


def dump(kafka_tools: KafkaTools, files: list[Path], *options: str) -> str:
    names = ",".join(str(file) for file in files)
    done = kafka_tools.run("org.apache.kafka.tools.DumpLogSegments", "--files", names, *options, timeout_s=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_log(path: Path) -> tuple[Log, list[tuple[int, int, int, int]]]:
    """Writes overlapping transactions of three producers in three segments. Two transactions stay open. Returns the
    log and the entries that its indexes of aborted transactions must have."""
    log = open_log(path)
    epochs = dict.fromkeys((7, 8, 9), 0)
    aborted = []
    for number in range(9):
        for producer_id in (7, 8, 9):
            if producer_id not in log.producers.open_transactions:
                put(log, sequenced(0, 2, producer_id, epochs[producer_id], transactional=True))
        ended = (7, 8, 9)[number * 2 % 3]
        first = log.producers.open_transactions[ended]
        epochs[ended] += 1
        marker = EndTransactionMarker(ended, epochs[ended], number, number % 3 == 1, 2)
        last = log.append_marker(marker, now_ms=T0, leader_epoch=0).base_offset
        if not marker.commit:
            aborted.append((ended, first, last, log.last_stable_offset))
        if number % 3 == 2:
            log.roll(T0)
    return log, aborted


def test_kafkas_tool_reads_the_files_of_our_transactions(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    path = tmp_path / "flights-0"
    log, aborted = write_log(path)
    log.close()
    indexes = sorted(path.glob("*.txnindex"))
    assert len(indexes) == 3
    printed = dump(kafka_tools, indexes)
    pattern = r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
    assert [tuple(map(int, found)) for found in re.findall(pattern, printed)] == aborted
    assert len(aborted) == 6

    printed = dump(kafka_tools, sorted(path.glob("*.log")), "--deep-iteration")
    markers = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", printed)
    assert markers == [("COMMIT" if number % 3 == 1 else "ABORT", str(number)) for number in range(9)]
    assert "isvalid: false" not in printed

    printed = dump(kafka_tools, [path / f"{log.log_end_offset:020d}.snapshot"])
    pattern = r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: (\S+)"
    found = {int(row[0]): row[1:] for row in re.findall(pattern, printed)}
    for state in log.producers:
        first = f"OptionalLong[{state.transaction_start}]" if state.transaction_start >= 0 else "OptionalLong.empty"
        assert found[state.producer_id][:2] == (str(state.epoch), str(state.coordinator_epoch))
        assert found[state.producer_id][2] in {first, str(state.transaction_start)}


def json_objects(text: str) -> list[dict[str, Any]]:
    """JSON objects without line ends between them, as Kafka's formatter prints them."""
    decoder = json.JSONDecoder()
    found, at = [], 0
    while (at := text.find("{", at)) >= 0:
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


def set_level(wire: Wire, level: int) -> None:
    row = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": 3 if level < 2 else 1}
    message = {"timeout": 10_000, "feature_updates": [row], "validate_only": False}
    assert wire.call(UPDATE_FEATURES, 2, message).error_code in (0, 87), "done, or the level is the same"


def expected_rows(log: bytes) -> list[dict[str, Any]]:
    """The records of ``__transaction_state`` with the fields that Kafka's tools print."""
    rows = []
    for row in iter_records(log):
        decoded = decode(row.key, row.value)
        assert isinstance(decoded, tuple)
        name, state = decoded
        shown: dict[str, Any] | None = None
        if state is not None:
            shown = {
                "producerId": state.producer_id, "producerEpoch": state.producer_epoch,
                "transactionTimeoutMs": state.timeout_ms, "transactionStatus": int(state.state),
                "transactionLastUpdateTimestampMs": state.last_update_ms,
                "transactionStartTimestampMs": state.start_ms, "clientTransactionVersion": state.client_version,
                "partitions": sorted(state.partitions),
            }  # fmt: skip
        rows.append({"name": name, "value": shown})
    return rows


def printed_row(key: dict[str, Any], value: dict[str, Any] | None) -> dict[str, Any]:
    shown = None
    if value is not None:
        shown = {name: field for name, field in value.items() if name in SHOWN}
        shown.setdefault("clientTransactionVersion", 0)  # version 0 has no such field
        topics = value["transactionPartitions"] or ()
        shown["partitions"] = sorted((topic["topic"], index) for topic in topics for index in topic["partitionIds"])
    return {"name": key["transactionalId"], "value": shown}


SHOWN = {
    "producerId", "producerEpoch", "transactionTimeoutMs", "transactionStatus", "transactionLastUpdateTimestampMs",
    "transactionStartTimestampMs", "clientTransactionVersion",
}  # fmt: skip


def test_kafkas_tools_read_our_transaction_log(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    """The dump tool reads the file, and the formatter of the console consumer reads the topic, at levels 2 and 0."""
    settings = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
    with odradek.Broker(tmp_path / "data", settings) as broker, Wire(broker.bootstrap_servers) as wire:
        create_topic(wire, "t", 3)
        for level in (2, 0):
            set_level(wire, level)
            for number, commit in enumerate((True, False, None)):
                producer = RawProducer(wire, f"tx-{level}-{number}", level=level).started()
                producer.add("t", (0, 2))
                assert producer.add_offsets("g") == "none"
                if commit is not None:
                    assert producer.end(commit=commit) == "none"
        path = tmp_path / "data" / "__transaction_state-0" / f"{0:020}.log"
        eventually(lambda: len(list(iter_records(path.read_bytes()))) == 2 * (5 + 5 + 3))
        expected = expected_rows(path.read_bytes())
        console = ["--bootstrap-server", broker.bootstrap_servers, "--topic", "__transaction_state", "--partition", "0"]
        console += ["--offset", "earliest", "--max-messages", str(len(expected)), "--timeout-ms", "20000"]
        console += ["--formatter", "org.apache.kafka.tools.consumer.TransactionLogMessageFormatter"]
        done = kafka_tools.run("org.apache.kafka.tools.consumer.ConsoleConsumer", *console, timeout_s=120)
    found = json_objects(done.stdout)
    assert [printed_row(row["key"]["data"], (row["value"] or {}).get("data")) for row in found] == expected
    assert {row["value"]["version"] for row in found} == {0, 1}
    assert {row["value"]["transactionStatus"] for row in expected} == {0, 1, 2, 3, 4, 5}
    assert {row["value"]["clientTransactionVersion"] for row in expected} == {0, 2}

    printed = dump(kafka_tools, [path], "--transaction-log-decoder")
    pairs = re.findall(r"key: (\{.*\}) payload: (\{.*\})", printed)
    dumped = [(json.loads(key)["data"], json.loads(value)["data"]) for key, value in pairs]
    assert [printed_row(key, value) for key, value in dumped] == expected
