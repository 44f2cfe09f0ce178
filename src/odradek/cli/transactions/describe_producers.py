"""``odradek transactions describe-producers``: the producers that have written to a partition."""

from __future__ import annotations

from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, connect, table_or_blocks
from odradek.cli.terminal import note_table, print_json
from odradek.cli.transactions.scope import BrokerId, Partition, Topic, given, shown

EPILOG = "Example:\n\n\b\n  odradek transactions describe-producers --topic flights --partition 0 -b 127.0.0.1:9092"
_HEAD = (
    "ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp",
    "CurrentTransactionStartOffset",
)  # fmt: skip


def describe_producers(
    *,
    bootstrap: Bootstrap,
    topic: Topic,
    partition: Partition,
    broker_id: BrokerId = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the producers that have written to a partition, and the start of their open transactions."""
    from odradek.core.ids import TopicPartition

    tp = TopicPartition(given(topic, "--topic"), partition)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        found = admin.describe_producers([tp], broker_id=broker_id)[tp]
    if as_json:
        print_json([row._asdict() for row in found], indent=2)
        return
    rows = [
        (
            row.producer_id, row.producer_epoch, -1 if row.coordinator_epoch is None else row.coordinator_epoch,
            row.last_sequence, row.last_timestamp_ms, row.transaction_start_offset,
        )
        for row in found
    ]  # fmt: skip
    note_table(table_or_blocks(_HEAD, [tuple(map(shown, row)) for row in rows]))
