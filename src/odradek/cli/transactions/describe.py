"""``odradek transactions describe``: the state of one transactional id."""

from __future__ import annotations

import time

from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, connect, table_or_blocks
from odradek.cli.terminal import note_table, print_json
from odradek.cli.transactions.scope import TransactionalId, given, shown

EPILOG = "Example:\n\n\b\n  odradek transactions describe --transactional-id bank -b 127.0.0.1:9092"
_HEAD = (
    "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState", "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions",
)  # fmt: skip


def describe(
    *,
    bootstrap: Bootstrap,
    transactional_id: TransactionalId,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the state of a transactional id: its producer, its timeout and the partitions of its open transaction."""
    name = given(transactional_id, "--transactional-id")
    with connect(bootstrap, timeout_ms, command_config) as admin:
        found = admin.describe_transactions([name])[name]
    start_ms = found.start_ms
    duration_ms = None if start_ms is None else time.time_ns() // 1_000_000 - start_ms
    if as_json:
        own = {
            "coordinator": found.coordinator.node_id, "transactional_id": name, "producer_id": found.producer_id,
            "producer_epoch": found.producer_epoch, "state": found.state, "timeout_ms": found.timeout_ms,
            "start_ms": start_ms, "duration_ms": duration_ms,
            "partitions": [tp._asdict() for tp in found.partitions],
        }  # fmt: skip
        print_json(own, indent=2)
        return
    row = (
        found.coordinator.node_id, name, found.producer_id, found.producer_epoch, found.state, found.timeout_ms,
        start_ms, duration_ms, ",".join(map(str, found.partitions)),
    )  # fmt: skip
    note_table(table_or_blocks(_HEAD, [tuple(map(shown, row))]))
