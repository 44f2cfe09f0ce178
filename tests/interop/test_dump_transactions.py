"""Apache Kafka's own tool reads the files of our transactions: markers, indexes of aborted transactions, snapshots."""

from __future__ import annotations

import re
from pathlib import Path

from support.jvm import KafkaTools
from support.logs import T0, open_log, put, sequenced

from odradek.core.transaction_records import EndTransactionMarker
from odradek.storage.log import Log


def dump(kafka_tools: KafkaTools, files: list[Path], *options: str) -> str:
    names = ",".join(str(file) for file in files)
    done = kafka_tools.run("org.apache.kafka.tools.DumpLogSegments", "--files", names, *options, timeout_s=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_log(path: Path) -> tuple[Log, list[tuple[int, int, int, int]]]:
    """Overlapping transactions of three producers in three segments, one of them open. Also the index entries."""
    log = open_log(path)
    epochs = dict.fromkeys((7, 8, 9), 0)
    aborted = []
    for number in range(9):
        for producer_id in (7, 8, 9):
            if producer_id not in log.open_transactions:
                put(log, sequenced(0, 2, producer_id, epochs[producer_id], transactional=True))
        ended = (7, 8, 9)[number * 2 % 3]
        first = log.open_transactions[ended]
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
