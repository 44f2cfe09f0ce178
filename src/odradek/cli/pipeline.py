"""``odradek pipeline``: pipelines between topics, tables and the offsets topic, on Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from odradek.cli.options import CONTEXT, AsJson, Bootstrap, CommandConfig
from odradek.cli.pipeline_history import EPILOG, SUMMARY, history

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Pipelines on Spark: topics into tables, ranges once more, the history of groups.",
    epilog="Example:\n\n\b\n"
    "  odradek pipeline ingest --topics events --group event-lake --output lake/events -b 127.0.0.1:9092",
)

Topics = Annotated[str | None, typer.Option("--topics", metavar="T[,T]", help="What to read, by name.")]
Output = Annotated[str, typer.Option("--output", metavar="DIR|URI", help="The table's place.")]
TableFormat = Annotated[str, typer.Option("--table-format", metavar="parquet|delta", help="The kind of table.")]
ValueFormat = Annotated[str, typer.Option("--value-format", metavar="raw|json|avro", help="What values are.")]
Schema = Annotated[
    str | None,
    typer.Option(
        "--schema",
        metavar="TEXT|FILE",
        help="json: fields as 'id bigint, name string' (none: any JSON, as text); avro: the Avro schema.",
    ),
]
Framing = Annotated[str, typer.Option("--framing", metavar="none|confluent", help="What stands before an Avro value.")]
WriterSchema = Annotated[
    list[str] | None,
    typer.Option("--writer-schema", metavar="ID=FILE", help="An Avro schema by Confluent's id. Repeatable."),
]
Flat = Annotated[bool, typer.Option("--flat", help="The value's fields become columns of the table.")]
Headers = Annotated[bool, typer.Option("--headers", help="Keep the records' headers.")]
KeepRaw = Annotated[bool, typer.Option("--keep-raw", help="Keep every value's bytes, too, in column raw.")]
OnBad = Annotated[
    str,
    typer.Option(
        "--on-bad", metavar="keep|fail", help="Unreadable values: keep them in columns raw and error, or stop."
    ),
]
PartitionBy = Annotated[
    str | None, typer.Option("--partition-by", metavar="COL[,COL]", help="Folders by these columns.")
]
FilesPerBatch = Annotated[
    int | None, typer.Option("--files-per-batch", min=1, metavar="N", help="Write with at most N tasks.")
]
SourceOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="NAME=VALUE", help="Another option of format('odradek'). Repeatable."),
]
StorageOption = Annotated[
    list[str] | None,
    typer.Option("--storage-option", metavar="NAME=VALUE", help="How deltalake reaches its storage. Repeatable."),
]
Master = Annotated[str, typer.Option("--master", metavar="URL", help="Spark's master: local[N], spark://HOST:PORT, …")]
SparkConf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's. Repeatable.")
]

Group = Annotated[str, typer.Option("--group", metavar="GROUP", help="On whose behalf; its offsets follow the table.")]
Pattern = Annotated[
    str | None, typer.Option("--subscribe-pattern", metavar="REGEX", help="What to read, by a pattern of names.")
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="DIR|URI", help="Where Spark keeps the query's state. Default: in the table."),
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Read up to the present end, then stop. The default.")
]
Trigger = Annotated[
    str | None, typer.Option("--trigger", metavar="10s", help="Go on: a batch every so often, until interrupted.")
]
StartWithout = Annotated[
    str, typer.Option("--from", metavar="earliest|latest|none", help="Where partitions without a commit begin.")
]
MaxOffsets = Annotated[
    int | None, typer.Option("--max-offsets", min=1, metavar="N", help="At most N offsets in one batch.")
]
Start = Annotated[str, typer.Option("--from", metavar="earliest|OFFSET|TIME", help="Where to begin in each partition.")]
End = Annotated[str, typer.Option("--to", metavar="latest|OFFSET|TIME", help="Where to end, itself not included.")]
Offsets = Annotated[
    str | None, typer.Option("--offsets", metavar="JSON", help='Ranges by hand: {"events":{"0":[100,200]}}.')
]
ReadBy = Annotated[
    str | None, typer.Option("--read-by", metavar="GROUP", help="What this group read, as its commits tell.")
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="With --read-by: from its last commit before this on.")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="With --read-by: up to its last commit before this.")
]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="Go on with what is left where records or commits are gone.")
]
IntoTable = Annotated[str | None, typer.Option("--output", metavar="DIR|URI", help="Into this table, once.")]
IntoTopic = Annotated[str | None, typer.Option("--to-topic", metavar="TOPIC", help="Into this topic, at least once.")]
KeepPartitions = Annotated[
    bool, typer.Option("--keep-partitions", help="Into the topic's partition of the same number.")
]
KeepTimestamps = Annotated[
    bool, typer.Option("--keep-timestamps", help="With the records' own times (retention goes by them).")
]
Again = Annotated[bool, typer.Option("--again", help="Also if the table holds this replay already.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the ranges, read nothing.")]


@app.callback()
def _pipeline() -> None:
    """Pipelines on Spark: topics into tables, ranges once more, the history of groups."""


app.command(short_help=SUMMARY, epilog=EPILOG)(history)


@app.command(
    short_help="Topics into a lake table, each record once.",
    epilog="Examples:\n\n\b\n"
    "  odradek pipeline ingest --topics events --group event-lake --output lake/events \\\n"
    "      --value-format json --schema 'id bigint, name string' -b 127.0.0.1:9092\n"
    "  odradek pipeline ingest --subscribe-pattern 'shop-.*' --group shop-lake --output lake/shop \\\n"
    "      --table-format delta --trigger 10s -b 127.0.0.1:9092",
)
def ingest(
    *,
    bootstrap: Bootstrap,
    group: Group,
    output: Output,
    topics: Topics = None,
    subscribe_pattern: Pattern = None,
    table_format: TableFormat = "parquet",
    value_format: ValueFormat = "raw",
    schema: Schema = None,
    framing: Framing = "none",
    writer_schema: WriterSchema = None,
    flat: Flat = False,
    headers: Headers = False,
    keep_raw: KeepRaw = False,
    on_bad: OnBad = "keep",
    partition_by: PartitionBy = None,
    files_per_batch: FilesPerBatch = None,
    checkpoint: Checkpoint = None,
    available_now: AvailableNow = False,
    trigger: Trigger = None,
    start: StartWithout = "earliest",
    max_offsets: MaxOffsets = None,
    option: SourceOption = None,
    storage_option: StorageOption = None,
    master: Master = "local[*]",
    conf: SparkConf = None,
    as_json: AsJson = False,
    command_config: CommandConfig = None,
) -> None:
    """Read what a group has not read of its topics into a table of Parquet files or a Delta table, each record once.

    A run that was killed anywhere is completed by the next one. The group's offsets are committed after the table.
    """
    from odradek.cli.pipeline_ingest import Asked, run_ingest_command

    asked = Asked(
        bootstrap=bootstrap,
        group=group,
        topics=topics,
        pattern=subscribe_pattern,
        output=output,
        table_format=table_format,
        value_format=value_format,
        schema=schema,
        framing=framing,
        writer_schemas=writer_schema or [],
        columns={"flat": flat, "headers": headers, "keep_raw": keep_raw},
        on_bad=on_bad,
        partition_by=partition_by,
        files_per_batch=files_per_batch,
        checkpoint=checkpoint,
        available_now=available_now,
        trigger=trigger,
        start=start,
        max_offsets=max_offsets,
        options=option or [],
        storage_options=storage_option or [],
        master=master,
        conf=conf or [],
        as_json=as_json,
        command_config=command_config,
    )
    raise typer.Exit(run_ingest_command(asked))


@app.command(
    short_help="Ranges of topics once more, into a table or a topic.",
    epilog="Examples:\n\n\b\n"
    "  odradek pipeline replay --topics events --from 2026-01-31T12:00 --to 2026-01-31T13:00 \\\n"
    "      --output lake/noon -b 127.0.0.1:9092\n"
    '  odradek pipeline replay --offsets \'{"events":{"0":[100,200]}}\' --to-topic again -b 127.0.0.1:9092\n'
    "  odradek pipeline replay --read-by billing --since 2026-01-31T12:00 --dry-run -b 127.0.0.1:9092",
)
def replay(
    *,
    bootstrap: Bootstrap,
    topics: Topics = None,
    start: Start = "earliest",
    end: End = "latest",
    offsets: Offsets = None,
    read_by: ReadBy = None,
    since: Since = None,
    until: Until = None,
    allow_missing: AllowMissing = False,
    output: IntoTable = None,
    to_topic: IntoTopic = None,
    keep_partitions: KeepPartitions = False,
    keep_timestamps: KeepTimestamps = False,
    table_format: TableFormat = "parquet",
    value_format: ValueFormat = "raw",
    schema: Schema = None,
    flat: Flat = False,
    headers: Headers = False,
    keep_raw: KeepRaw = False,
    on_bad: OnBad = "keep",
    partition_by: PartitionBy = None,
    again: Again = False,
    dry_run: DryRun = False,
    option: SourceOption = None,
    storage_option: StorageOption = None,
    master: Master = "local[*]",
    conf: SparkConf = None,
    as_json: AsJson = False,
    command_config: CommandConfig = None,
) -> None:
    """Read ranges of topics once more: by offsets, by times, or what a group read between two of its commits.

    A replay into a table is known by its ranges: run again, killed or not, it adds nothing twice.
    """
    from odradek.cli.pipeline_replay import Asked, run_replay_command

    table = {
        "table_format": table_format,
        "value_format": value_format,
        "schema": schema,
        "columns": {"flat": flat, "headers": headers, "keep_raw": keep_raw},
        "on_bad": on_bad,
        "partition_by": partition_by,
        "storage_options": storage_option or [],
    }
    selection = {"topics": topics, "offsets": offsets, "start": start, "end": end, "read_by": read_by}
    asked = Asked(
        bootstrap=bootstrap,
        selection=selection | {"since": since, "until": until},
        allow_missing=allow_missing,
        output=output,
        to_topic=to_topic,
        table=table,
        keep=(keep_partitions, keep_timestamps),
        again=again,
        dry_run=dry_run,
        options=option or [],
        master=master,
        conf=conf or [],
        as_json=as_json,
        command_config=command_config,
    )
    raise typer.Exit(run_replay_command(asked))
