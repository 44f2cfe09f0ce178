"""``odradek transactions abort``: ends a hanging transaction in one partition by an abort marker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.confirmation import confirm
from odradek.cli.options import (
    LAST_INT16,
    LAST_INT32,
    LAST_INT64,
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    connect,
)
from odradek.cli.terminal import CommandError, note, print_json
from odradek.cli.transactions.scope import Partition, Topic, Yes, given

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.core.ids import ProducerIdentity, TopicPartition

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek transactions abort --topic flights --partition 0 --start-offset 2 -b 127.0.0.1:9092\n"
    "  odradek transactions abort --topic flights --partition 0 --producer-id 7 --producer-epoch 0 \\\n"
    "    --coordinator-epoch 0 --yes -b 127.0.0.1:9092"
)


def abort(
    *,
    bootstrap: Bootstrap,
    topic: Topic,
    partition: Partition,
    start_offset: Annotated[
        int | None,
        typer.Option("--start-offset", min=0, metavar="OFFSET", help="The first offset of the transaction."),
    ] = None,
    producer_id: Annotated[
        int | None,
        typer.Option(
            "--producer-id", min=0, max=LAST_INT64, metavar="ID", help="In place of --start-offset: the producer's id."
        ),
    ] = None,
    producer_epoch: Annotated[
        int | None,
        typer.Option("--producer-epoch", min=0, max=LAST_INT16, metavar="EPOCH", help="With --producer-id: its epoch."),
    ] = None,
    coordinator_epoch: Annotated[
        int | None,
        typer.Option(
            "--coordinator-epoch",
            min=-1,
            max=LAST_INT32,
            metavar="EPOCH",
            help="With --producer-id: the coordinator epoch.",
        ),
    ] = None,
    yes: Yes = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Abort a hanging transaction in one partition.

    The command writes an abort marker without the coordinator. Use it only for a transaction that "find-hanging" has
    found. "force-terminate" ends a transaction that a coordinator knows.
    """
    from odradek.core.ids import TopicPartition

    tp = TopicPartition(given(topic, "--topic"), partition)
    if start_offset is not None and (producer_id, producer_epoch, coordinator_epoch) != (None, None, None):
        raise CommandError("--start-offset and --producer-id with its epochs both name a transaction: give one of them")
    chosen = _given_producer(producer_id, producer_epoch, coordinator_epoch) if start_offset is None else None
    with connect(bootstrap, timeout_ms, command_config) as admin:
        producer, coordinator = chosen or _producer_at(admin, tp, start_offset or 0)
        what = f"the transaction of producer {producer.producer_id} (epoch {producer.producer_epoch}) in {tp}"
        if not confirm(f"Abort {what}?", yes):
            return
        admin.abort_transaction(tp, producer, coordinator)
    if as_json:
        print_json(tp._asdict() | producer._asdict() | {"coordinator_epoch": coordinator}, indent=2)
    else:
        note(f"Aborted {what}.")


def _given_producer(
    producer_id: int | None, epoch: int | None, coordinator_epoch: int | None
) -> tuple[ProducerIdentity, int]:
    """Returns the producer and the coordinator epoch of the options. Raises CommandError."""
    from odradek.core.ids import ProducerIdentity

    if producer_id is None:
        raise CommandError(
            "missing option '--start-offset', or '--producer-id', '--producer-epoch' and '--coordinator-epoch'"
        )
    if epoch is None or coordinator_epoch is None:
        missing = "--producer-epoch" if epoch is None else "--coordinator-epoch"
        raise CommandError(f"missing option '{missing}', which --producer-id needs")
    return ProducerIdentity(producer_id, epoch), max(0, coordinator_epoch)


def _producer_at(admin: Admin, tp: TopicPartition, start_offset: int) -> tuple[ProducerIdentity, int]:
    """Returns the producer and the coordinator epoch of the open transaction at this offset. Raises CommandError."""
    from odradek.core.ids import ProducerIdentity

    found = admin.describe_producers([tp])[tp]
    for row in found:
        if row.transaction_start_offset == start_offset:
            return ProducerIdentity(row.producer_id, row.producer_epoch), row.coordinator_epoch or 0
    starts = sorted(row.transaction_start_offset for row in found if row.transaction_start_offset is not None)
    known = f"its open transactions start at {', '.join(map(str, starts))}" if starts else "it has no open transaction"
    raise CommandError(f"no open transaction of {tp} starts at offset {start_offset}: {known}")
