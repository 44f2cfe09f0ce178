"""``odradek transactions find-hanging``: open transactions that no coordinator knows."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from odradek.cli.options import (
    LAST_INT32,
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    connect,
    table_or_blocks,
)
from odradek.cli.terminal import CommandError, note_table, print_json
from odradek.cli.transactions.scope import BrokerId

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek transactions find-hanging --topic flights -b 127.0.0.1:9092\n"
    "  odradek transactions find-hanging --broker-id 1 --max-transaction-timeout 60 -b 127.0.0.1:9092"
)
_HEAD = (
    "Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp",
    "Duration(min)",
)  # fmt: skip


def find_hanging(
    *,
    bootstrap: Bootstrap,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Search this topic.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, max=LAST_INT32, metavar="N", help="Only this partition of it.")
    ] = None,
    broker_id: BrokerId = None,
    max_timeout: Annotated[
        int,
        typer.Option(
            "--max-transaction-timeout", min=0, metavar="MIN",
            help="Only transactions without a write for this many minutes.",
        ),
    ] = 15,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:  # fmt: skip
    """Find open transactions that no coordinator knows.

    Such a transaction does not end by itself, and readers with read_committed wait for its end. "odradek transactions
    abort" ends it.
    """
    from odradek.core.ids import TopicPartition

    if not topic and broker_id is None:
        raise CommandError("missing option '--topic' or '--broker-id': one of them limits the search")
    if partition is not None and not topic:
        raise CommandError("--partition needs --topic")
    with connect(bootstrap, timeout_ms, command_config) as admin:
        partitions = None
        if topic and partition is not None:
            partitions = [TopicPartition(topic, partition)]
        elif topic:
            rows = admin.describe_topics([topic])[topic].partitions
            kept = [row for row in rows if broker_id is None or broker_id in row.replicas]
            partitions = [TopicPartition(topic, row.partition) for row in kept]
        found = admin.find_hanging_transactions(
            partitions, max_timeout_ms=max_timeout * 60_000, broker_id=broker_id
        )  # fmt: skip
    if as_json:
        print_json([one.partition._asdict() | one.producer._asdict() for one in found], indent=2)
        return
    now_ms = time.time_ns() // 1_000_000
    table = [
        (
            one.partition.topic, one.partition.partition, one.producer.producer_id, one.producer.producer_epoch,
            -1 if one.producer.coordinator_epoch is None else one.producer.coordinator_epoch,
            one.producer.transaction_start_offset, one.producer.last_timestamp_ms,
            (now_ms - one.producer.last_timestamp_ms) // 60_000,
        )
        for one in found
    ]  # fmt: skip
    note_table(table_or_blocks(_HEAD, [tuple(map(str, row)) for row in table]))
