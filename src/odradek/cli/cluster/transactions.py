"""``odradek transactions``: lists and describes transactions of any Kafka cluster, and ends them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.options import (
    CONTEXT,
    LAST_INT16,
    LAST_INT32,
    LAST_INT64,
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    confirm,
    connect,
    table_or_blocks,
)
from odradek.cli.terminal import CommandError, note, note_table, print_json
from odradek.core.counts import plural

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.client.model import HangingTransaction, TransactionDescription
    from odradek.core.ids import ProducerIdentity, TopicPartition

TransactionalId = Annotated[
    str | None,
    typer.Option("--transactional-id", "--transactionalId", metavar="ID", help="The transactional id, as an option."),
]
IdArgument = Annotated[str | None, typer.Argument(metavar="ID", help="The transactional id.")]
TopicArgument = Annotated[
    str | None, typer.Argument(metavar="TOPIC[:N]", help="The topic, or one of its partitions, as with --topic.")
]
Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic.")]
Partition = Annotated[
    int, typer.Option("--partition", min=0, max=LAST_INT32, metavar="N", help="The partition's number.")
]
BrokerId = Annotated[
    int | None, typer.Option("--broker-id", metavar="ID", help="Ask this broker's replica, not the leader.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def given(name: str, option: str) -> str:
    """Returns the name. Raises CommandError for an empty one."""
    if not name:
        raise CommandError(f"{option}: the name cannot be empty")
    return name


def only_id(argument: str | None, option: str | None) -> str:
    """Returns the transactional id, which is an argument or an option. Raises CommandError."""
    if argument is not None and option is not None and argument != option:
        raise CommandError(f"ID {argument} and --transactional-id {option}: give one id")
    name = argument if argument is not None else option
    if name is None:
        raise CommandError("missing argument 'ID' or '--transactional-id': odradek transactions list shows the ids")
    return given(name, "--transactional-id")


def topic_and_partition(
    argument: str | None, topic: str | None, partition: int | None
) -> tuple[str | None, int | None]:
    """Returns the topic and the partition of ``TOPIC``, ``TOPIC:N``, --topic and --partition. Raises CommandError."""
    name, colon, number = (argument or "").partition(":")
    if argument is None:
        return topic, partition
    if colon and not (number.isascii() and number.isdigit() and int(number) <= LAST_INT32):
        raise CommandError(f"{argument!r}: expected TOPIC or TOPIC:N, with the number of one partition")
    if topic is not None and topic != name:
        raise CommandError(f"topic {name} and --topic {topic}: give one topic")
    if colon and partition is not None and partition != int(number):
        raise CommandError(f"{argument} and --partition {partition}: give one partition")
    return name, int(number) if colon else partition


def known_transaction(admin: Admin, name: str) -> TransactionDescription:
    """Describes a transactional id. Raises CommandError with a similar id for an unknown one, and KafkaError."""
    from odradek.core.errors import ErrorCode, KafkaError, OdradekError
    from odradek.text.similar_names import nearest

    try:
        return admin.describe_transactions([name])[name]
    except KafkaError as error:
        if error.code is not ErrorCode.transactional_id_not_found:
            raise
        try:
            similar = nearest(name, [row.transactional_id for row in admin.list_transactions()])
        except OdradekError:
            similar = ""
        remedy = similar or ": odradek transactions list shows the ids"
        raise CommandError(f"{error}{remedy}") from error


def _check_broker(admin: Admin, broker_id: int | None) -> None:
    """Raises CommandError for a broker that the cluster does not have: a request would wait for it."""
    if broker_id is None:
        return
    known = sorted(node.node_id for node in admin.describe_cluster().nodes)
    if broker_id not in known:
        brokers = f"{plural(len(known), 'broker')} {', '.join(map(str, known))}"
        raise CommandError(f"--broker-id {broker_id}: the cluster has {brokers}")


def shown(value: object) -> str:
    """Returns a cell of a table; ``None`` for a missing value, as in Kafka's tool."""
    return "None" if value is None else str(value)


_LIST_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek transactions list -b 127.0.0.1:9092\n"
    "  odradek transactions list --duration-filter 60000 -b 127.0.0.1:9092 --json"
)
_LIST_HEAD = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")


def list_(
    *,
    bootstrap: Bootstrap,
    duration_filter: Annotated[
        int,
        typer.Option(
            "--duration-filter", max=LAST_INT64, metavar="MS", help="Only transactions that are open for longer."
        ),
    ] = -1,
    pattern: Annotated[
        str,
        typer.Option(
            "--transactional-id-pattern",
            metavar="REGEX",
            help="Only ids that match as a whole. Odradek's broker takes RE2's syntax, Apache Kafka Java's.",
        ),
    ] = "",
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """List all transactional ids of a cluster with their coordinators and states."""
    with connect(bootstrap, timeout_ms, command_config) as admin:
        listings = admin.list_transactions(duration_ms=duration_filter, pattern=pattern)
    if as_json:
        print_json([row._asdict() for row in listings], indent=2)
        return
    note_table(table_or_blocks(_LIST_HEAD, [tuple(map(str, row)) for row in listings]))


_DESCRIBE_EPILOG = "Example:\n\n\b\n  odradek transactions describe --transactional-id bank -b 127.0.0.1:9092"
_DESCRIBE_HEAD = (
    "CoordinatorId", "TransactionalId", "ProducerId", "ProducerEpoch", "TransactionState", "TransactionTimeoutMs",
    "CurrentTransactionStartTimeMs", "TransactionDurationMs", "TopicPartitions",
)  # fmt: skip


def describe(
    name: IdArgument = None,
    *,
    bootstrap: Bootstrap,
    transactional_id: TransactionalId = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the state of a transactional id: its producer, its timeout and the partitions of its open transaction."""
    name = only_id(name, transactional_id)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        transaction = known_transaction(admin, name)
    start_ms = transaction.start_ms
    duration_ms = None if start_ms is None else time.time_ns() // 1_000_000 - start_ms
    if as_json:
        own = {
            "coordinator": transaction.coordinator.node_id, "transactional_id": name,
            "producer_id": transaction.producer_id, "producer_epoch": transaction.producer_epoch,
            "state": transaction.state, "timeout_ms": transaction.timeout_ms,
            "start_ms": start_ms, "duration_ms": duration_ms,
            "partitions": [tp._asdict() for tp in transaction.partitions],
        }  # fmt: skip
        print_json(own, indent=2)
        return
    row = (
        transaction.coordinator.node_id, name, transaction.producer_id, transaction.producer_epoch, transaction.state,
        transaction.timeout_ms, start_ms, duration_ms, ",".join(map(str, transaction.partitions)),
    )  # fmt: skip
    note_table(table_or_blocks(_DESCRIBE_HEAD, [tuple(map(shown, row))]))


_PRODUCERS_EPILOG = (
    "Example:\n\n\b\n  odradek transactions describe-producers --topic flights --partition 0 -b 127.0.0.1:9092"
)
_PRODUCERS_HEAD = (
    "ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence", "LastTimestamp",
    "CurrentTransactionStartOffset",
)  # fmt: skip


def describe_producers(
    name: TopicArgument = None,
    *,
    bootstrap: Bootstrap,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="The topic, as an option.")] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", min=0, max=LAST_INT32, metavar="N", help="The partition's number.")
    ] = None,
    broker_id: BrokerId = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the producers that have written to a partition, and the start of their open transactions."""
    from odradek.core.ids import TopicPartition

    topic, partition = topic_and_partition(name, topic, partition)
    if topic is None or partition is None:
        raise CommandError(f"name one partition: {topic or 'TOPIC'}:0, or --topic {topic or 'TOPIC'} --partition 0")
    tp = TopicPartition(given(topic, "--topic"), partition)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        _check_broker(admin, broker_id)
        producers = admin.describe_producers([tp], broker_id=broker_id)[tp]
    if as_json:
        print_json([row._asdict() for row in producers], indent=2)
        return
    rows = [
        (
            row.producer_id, row.producer_epoch, -1 if row.coordinator_epoch is None else row.coordinator_epoch,
            row.last_sequence, row.last_timestamp_ms, row.transaction_start_offset,
        )
        for row in producers
    ]  # fmt: skip
    note_table(table_or_blocks(_PRODUCERS_HEAD, [tuple(map(shown, row)) for row in rows]))


_HANGING_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek transactions find-hanging --topic flights -b 127.0.0.1:9092\n"
    "  odradek transactions find-hanging --broker-id 1 --max-transaction-timeout 60 -b 127.0.0.1:9092"
)
_HANGING_HEAD = (
    "Topic", "Partition", "ProducerId", "ProducerEpoch", "CoordinatorEpoch", "StartOffset", "LastTimestamp",
    "Duration(min)",
)  # fmt: skip


def find_hanging(
    name: TopicArgument = None,
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

    topic, partition = topic_and_partition(name, topic, partition)
    if not topic and broker_id is None:
        raise CommandError("missing argument 'TOPIC', '--topic' or '--broker-id': one of them limits the search")
    if partition is not None and not topic:
        raise CommandError("--partition needs --topic")
    with connect(bootstrap, timeout_ms, command_config) as admin:
        _check_broker(admin, broker_id)
        partitions = None
        if topic and partition is not None:
            partitions = [TopicPartition(topic, partition)]
        elif topic:
            rows = admin.describe_topics([topic])[topic].partitions
            kept = [row for row in rows if broker_id is None or broker_id in row.replicas]
            partitions = [TopicPartition(topic, row.partition) for row in kept]
        transactions = admin.find_hanging_transactions(
            partitions, max_timeout_ms=max_timeout * 60_000, broker_id=broker_id
        )  # fmt: skip
    if as_json:
        print_json([one.partition._asdict() | one.producer._asdict() for one in transactions], indent=2)
        return
    note_table(_hanging_table(transactions, time.time_ns() // 1_000_000))


def _hanging_table(transactions: Sequence[HangingTransaction], now_ms: int) -> str:
    table = [
        (
            one.partition.topic, one.partition.partition, one.producer.producer_id, one.producer.producer_epoch,
            -1 if one.producer.coordinator_epoch is None else one.producer.coordinator_epoch,
            one.producer.transaction_start_offset, one.producer.last_timestamp_ms,
            (now_ms - one.producer.last_timestamp_ms) // 60_000,
        )
        for one in transactions
    ]  # fmt: skip
    return table_or_blocks(_HANGING_HEAD, [tuple(map(str, row)) for row in table])


_ABORT_EPILOG = (
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
        if tp not in (known := admin.partitions(tp.topic)):
            raise CommandError(f"{tp} does not exist: {tp.topic} has the partitions 0 to {len(known) - 1}")
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

    producers = admin.describe_producers([tp])[tp]
    for row in producers:
        if row.transaction_start_offset == start_offset:
            return ProducerIdentity(row.producer_id, row.producer_epoch), row.coordinator_epoch or 0
    starts = sorted(row.transaction_start_offset for row in producers if row.transaction_start_offset is not None)
    known = f"its open transactions start at {', '.join(map(str, starts))}" if starts else "it has no open transaction"
    raise CommandError(f"no open transaction of {tp} starts at offset {start_offset}: {known}")


_FORCE_EPILOG = "Example:\n\n\b\n  odradek transactions force-terminate --transactional-id bank -b 127.0.0.1:9092"


def force_terminate(
    name: IdArgument = None,
    *,
    bootstrap: Bootstrap,
    transactional_id: TransactionalId = None,
    yes: Yes = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Fence the producers of a transactional id and abort its open transaction.

    A running producer with this id fails at its next request.
    """
    name = only_id(name, transactional_id)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        before = known_transaction(admin, name)  # fails for an unknown id, which a fence would create
        places = f" with {', '.join(map(str, before.partitions))}" if before.partitions else ""
        if not confirm(f"Fence the producers of {name}, whose transaction is {before.state}{places}?", yes):
            return
        after = admin.fence_producers([name])[name]
    if as_json:
        print_json({"transactional_id": name, "state_before": before.state} | after._asdict(), indent=2)
    else:
        note(f"Fenced the producers of {name}: its epoch is now {after.producer_epoch}.")


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Transactions of a Kafka cluster.",
    epilog="Example:\n\n\b\n  odradek transactions find-hanging --topic flights -b 127.0.0.1:9092",
)

app.command(name="list", epilog=_LIST_EPILOG)(list_)
app.command(epilog=_DESCRIBE_EPILOG)(describe)
app.command(name="describe-producers", epilog=_PRODUCERS_EPILOG)(describe_producers)
app.command(name="find-hanging", epilog=_HANGING_EPILOG)(find_hanging)
app.command(epilog=_ABORT_EPILOG)(abort)
app.command(name="force-terminate", epilog=_FORCE_EPILOG)(force_terminate)
