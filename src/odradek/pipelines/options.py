"""The options of ``ingest``, ``replay`` and ``transform``, declared once for functions, commands and checks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from odradek.pipelines.option_checks import check_type
from odradek.pipelines.option_declarations import Option, declared_options
from odradek.pipelines.values.arguments import wrong
from odradek.pipelines.values.formats import Framing, ValueFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odradek.pipelines.commit.state import Added

TABLE_FORMATS = ("parquet", "delta", "iceberg")
WRITERS = ("workers", "spark")
"""``workers``: Spark's Python workers read, decode and write; ``spark``: Spark gets rows from them and writes files."""


FIXED, EVOLVES = "fixed", "add"
"""``fixed``: the columns of a table stay. ``add``: new fields add columns, and types become wider."""
LETTERS = "topic:"
"""The start of ``on_bad`` with the name of a topic."""
ValueFormatName = Annotated[str, Option("The format of the values.", choices=tuple(ValueFormat))]
Schema = Annotated[
    str | None,
    Option(
        "json: fields such as 'id bigint, name string' (default: any JSON, as text); avro: the Avro schema.",
        "TEXT|FILE",
    ),
]
FramingName = Annotated[str, Option("The header before each Avro value.", choices=tuple(Framing))]
WriterSchemas = Annotated[
    Mapping[int, str] | None,
    Option("The Avro writer schema for a Confluent schema id. Repeatable.", "ID=FILE", name="--writer-schema"),
]
SourceOptions = Annotated[
    Mapping[str, str] | None,
    Option("A further option of format('odradek'). Repeatable.", "NAME=VALUE", name="--option"),
]
FenceCommits = Annotated[
    bool,
    Option(
        "Commit the group's offsets in transactions, so that a paused run cannot set them back. All runs of the table "
        "need this option, and the right to write transactional ids 'odradek-table-…'."
    ),
]
SingleDriver = Annotated[
    bool,
    Option("The location has no exclusive create: state that no other program writes to the table at the same time."),
]
StorageOptions = Annotated[
    Mapping[str, str] | None,
    Option("A storage option of deltalake. Repeatable.", "NAME=VALUE", name="--storage-option"),
]
Catalog = Annotated[
    str | None,
    Option("With --table-format iceberg: a catalogue of pyiceberg's configuration, or its URI.", "NAME|URI"),
]
TableOption = Annotated[
    str | None, Option("With --table-format iceberg: the table's namespace and name.", "NS.NAME", name="--table")
]
CatalogOptions = Annotated[
    Mapping[str, str] | None,
    Option("A property of the Iceberg catalogue. Repeatable.", "NAME=VALUE", name="--catalog-option"),
]
Master = Annotated[str, Option("The Spark master, such as local[4] or spark://HOST:PORT.", "URL")]
SparkConf = Annotated[Mapping[str, str] | None, Option("A Spark setting. Repeatable.", "NAME=VALUE")]
Output = Annotated[
    str | Path | None, Option("The location of the table. For Iceberg, the catalogue has one.", "DIR|URI")
]
Topics = Annotated[str | Sequence[str], Option("Names of the topics to read.", "T[,T]")]
SubscribePattern = Annotated[str | None, Option("A regular expression for the names of the topics to read.", "REGEX")]
Trigger = Annotated[str | None, Option("Run until interrupted, with one micro-batch in each interval.", "10s")]
BatchSize = Annotated[str, Option("The most data, as stored in the topics, that one micro-batch reads.", "SIZE")]


@dataclass(frozen=True)
class PipelineOptions:
    """The common options of ``ingest`` and ``replay``: the cluster, the table and Spark.

    ``schema`` is text or a file: DDL for json, an Avro schema for avro. ``options`` are further options of
    ``format("odradek")``. ``spark``: the session to use. Without it, a session is started with ``master`` and the
    settings ``conf``, in the same way as the command starts it (docs/pipelines.md says how long a start takes).
    """

    bootstrap_servers: str
    _: KW_ONLY
    table_format: Annotated[str, Option("The format of the table.", choices=TABLE_FORMATS)] = "parquet"
    catalog: Catalog = field(default=None, repr=False)
    table: TableOption = None
    catalog_options: CatalogOptions = field(default=None, repr=False)
    value_format: ValueFormatName = "raw"
    schema: Schema = None
    framing: FramingName = "none"
    writer_schemas: WriterSchemas = None
    flat: Annotated[bool, Option("Make each field of the value a column of the table.")] = False
    headers: Annotated[bool, Option("Add the record headers to the table.")] = False
    keep_raw: Annotated[bool, Option("Also keep the bytes of every value, in column raw.")] = False
    on_bad: Annotated[
        str,
        Option(
            "For unreadable values: keep the value in column raw and the error in column error; send the "
            "record to a topic, too, before its micro-batch is in the table (at least once); or stop.",
            "keep|fail|topic:NAME",
            choices=("keep", "fail"),
            prefix=LETTERS,
        ),
    ] = "keep"
    schema_evolution: Annotated[
        str,
        Option(
            "If the schema has other fields than the table: fixed stops; add adds columns for new fields and makes "
            "types wider (int to bigint, float to double). Any other change stops.",
            choices=(FIXED, EVOLVES),
        ),
    ] = FIXED
    partition_by: Annotated[
        str | Sequence[str],
        Option("Partition the table by these columns; Iceberg: also by day(COL), bucket(N, COL).", "COL[,COL]"),
    ] = ()
    single_driver: SingleDriver = False
    files_per_batch: Annotated[int | None, Option("Use at most N tasks to write.", "N", minimum=1)] = None
    writer: Annotated[
        str, Option("The writer of the files: Spark's Python workers (no rows in Java), or Spark.", choices=WRITERS)
    ] = "workers"
    task_size: Annotated[str, Option("The most data, as stored in the topics, that one task reads.", "SIZE")] = "256m"
    options: SourceOptions = field(default=None, repr=False)
    storage_options: StorageOptions = field(default=None, repr=False)
    master: Master = "local[*]"
    conf: SparkConf = None
    spark: SparkSession | None = None


@dataclass(frozen=True, kw_only=True)
class IngestOptions(PipelineOptions):
    """Without ``trigger``, a run ends at the present end of the topics. With ``trigger``, it ends when ``stop`` is set.
    ``advance`` is called with the counts of each micro-batch. A list of names can also be text with commas.
    """

    group: Annotated[str, Option("The consumer group; each micro-batch in the table is committed to it.", "GROUP")]
    output: Output = None
    topics: Topics = ()
    subscribe_pattern: SubscribePattern = None
    checkpoint: Annotated[
        str | Path | None, Option("The folder of Spark's checkpoint. Default: in the table's folder.", "DIR|URI")
    ] = None
    trigger: Trigger = None
    batch_size: BatchSize = "1g"
    fence_commits: FenceCommits = False
    stop: threading.Event | None = None
    advance: Callable[[Added], None] = lambda added: None


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(PipelineOptions):
    """The records are selected by ``offsets``, by ``topics`` with ``start`` and ``end``, or by ``read_by``.
    ``producer_options`` (``{"compression.type": "zstd"}``) apply only to sending. The connection settings among
    ``options`` apply to reading and to sending.
    """

    topics: Topics = ()
    start: Annotated[
        str,
        Option(
            "The first offset to read in each partition. A time means the first offset whose record has this time or "
            "a later one.",
            "earliest|OFFSET|TIME",
            name="--from",
        ),
    ] = "earliest"
    end: Annotated[
        str,
        Option(
            "The end in each partition; this offset is not read. A time means an offset, as for --from.",
            "latest|OFFSET|TIME",
            name="--to",
        ),
    ] = "latest"
    offsets: Annotated[
        str | None,
        Option(
            'Ranges of offsets: {"events":{"0":[100,200]}}, or several of a partition: '
            '{"events":{"0":[[100,200],[300,310]]}}; the end is not read.',
            "JSON",
        ),
    ] = None
    read_by: Annotated[str | None, Option("Read what this group has read, according to its commits.", "GROUP")] = None
    since: Annotated[
        str | None, Option("With --read-by: start at the group's last commit at or before this time.", "TIME")
    ] = None
    until: Annotated[
        str | None, Option("With --read-by: end at the group's last commit at or before this time.", "TIME")
    ] = None
    allow_missing: Annotated[bool, Option("Read the remaining records if some records or commits are deleted.")] = False
    output: Annotated[str | Path | None, Option("Write to this table, each record exactly once.", "DIR|URI")] = None
    to_topic: Annotated[str | None, Option("Write to this topic, each record at least once.", "TOPIC")] = None
    exactly_once: Annotated[
        bool,
        Option(
            "With --to-topic: write in transactions, each record exactly once. The same command continues a run that "
            "was killed."
        ),
    ] = False
    batch_size: Annotated[
        str, Option("With --exactly-once: the most data, as stored in the topics, of one transaction.", "SIZE")
    ] = "256m"
    keep_partitions: Annotated[bool, Option("Keep the partition number of each record.")] = False
    keep_timestamps: Annotated[bool, Option("Keep the timestamp of each record (retention in the topic uses it).")] = (
        False
    )
    producer_options: Annotated[
        Mapping[str, str] | None,
        Option(
            "With --to-topic: a producer setting, such as compression.type=zstd. Repeatable.",
            "NAME=VALUE",
            name="--producer-option",
        ),
    ] = None
    again: Annotated[bool, Option("Replay even if the destination already has this replay.")] = False
    dry_run: Annotated[bool, Option("Show the ranges; read no records.")] = False


@dataclass(frozen=True)
class TransformOptions:
    """``function``: a function of one DataFrame that returns one, or its name as ``module:name``; ``schema``: as for
    ``ingest``. Without ``trigger``, a run ends at the present end of the topics. With ``trigger``, it ends when
    ``stop`` is set. ``advance`` is called with the number of rows of each micro-batch. ``options`` are further options
    of the source, ``producer_options`` apply only to sending. ``spark``: the session to use; without it, one is started
    with ``master`` and the settings ``conf``.
    """

    bootstrap_servers: str
    _: KW_ONLY
    group: Annotated[str, Option("The consumer group; its offsets are committed with the rows.", "GROUP")]
    to_topic: Annotated[str, Option("Write to this topic, which has to exist.", "TOPIC")]
    checkpoint: Annotated[str | Path, Option("The folder of Spark's checkpoint, one for each query.", "DIR|URI")]
    topics: Topics = ()
    subscribe_pattern: SubscribePattern = None
    sql: Annotated[
        str | None, Option("A query on the view 'records', with the columns key and value in its result.", "QUERY")
    ] = None
    function: Annotated[
        str | Callable[[DataFrame], DataFrame] | None,
        Option("A Python function that gets the DataFrame of the records and returns one to write.", "MODULE:NAME"),
    ] = None
    value_format: ValueFormatName = "raw"
    schema: Schema = None
    framing: FramingName = "none"
    writer_schemas: WriterSchemas = None
    flat: Annotated[bool, Option("Make each field of the value a column.")] = False
    on_bad: Annotated[
        str,
        Option(
            "For unreadable values: stop, or keep the row with the bytes in column raw and the reason in column error.",
            choices=("fail", "keep"),
        ),
    ] = "fail"
    keep_timestamps: Annotated[bool, Option("Send each row with the time in its column timestamp.")] = False
    trigger: Trigger = None
    batch_size: BatchSize = "256m"
    first_batch: Annotated[
        int | None, Option("The first micro-batch to write, after a refusal whose message names it.", "N", minimum=0)
    ] = None
    producer_options: Annotated[
        Mapping[str, str] | None,
        Option(
            "A producer setting, such as compression.type=zstd. Repeatable.", "NAME=VALUE", name="--producer-option"
        ),
    ] = None
    options: SourceOptions = field(default=None, repr=False)
    master: Master = "local[*]"
    conf: SparkConf = None
    spark: SparkSession | None = None
    stop: threading.Event | None = None
    advance: Callable[[int], None] = lambda rows: None


@dataclass(frozen=True)
class AdoptOptions:
    """``execute``: whether to do it; otherwise it is only planned. ``spark``: the session for a table at a URI."""

    bootstrap_servers: str
    _: KW_ONLY
    group: Annotated[str, Option("The consumer group of the table; it is set to the table's offsets.", "GROUP")]
    output: Output = None
    catalog: Catalog = field(default=None, repr=False)
    table: TableOption = None
    catalog_options: CatalogOptions = field(default=None, repr=False)
    checkpoint: Annotated[
        str | Path | None, Option("The folder of Spark's checkpoint. Default: in the table's folder.", "DIR|URI")
    ] = None
    fence_commits: FenceCommits = False
    single_driver: SingleDriver = False
    execute: Annotated[bool, Option("Do it. Without this option, the command only shows what it would do.")] = False
    options: SourceOptions = field(default=None, repr=False)
    storage_options: StorageOptions = field(default=None, repr=False)
    master: Master = "local[*]"
    conf: SparkConf = None
    spark: SparkSession | None = None


def check_values(options: PipelineOptions | TransformOptions) -> None:
    """Raises ArgumentError for a value that its option does not permit."""
    kind: type = type(options)
    for name, (hint, option) in declared_options(kind).items():
        value = getattr(options, name)
        check_type(name, value, hint)
        is_named = bool(option.prefix) and str(value).startswith(option.prefix)
        if option.choices and value not in option.choices and not is_named:
            said = f" {value!r} is unknown" if value else " is empty"
            more = f", {option.prefix}NAME" if option.prefix else ""
            raise wrong(name, f"{said}; choose one of {', '.join(option.choices)}{more}")
        if option.minimum is not None and value is not None and value < option.minimum:
            raise wrong(name, f" {value}: expected {option.minimum} or more")


def said_by_query(options: IngestOptions | TransformOptions, *, headers: bool) -> dict[str, object]:
    """Returns what the arguments of a streaming query say, for ``option_checks.check_options``."""
    return {
        "kafka.bootstrap.servers": options.bootstrap_servers,
        "kafka.group.id": options.group,
        "subscribe": ",".join(names(options.topics)),
        "subscribepattern": options.subscribe_pattern,
        "maxbytespertrigger": options.batch_size,
        "includeheaders": str(headers).lower(),
    }


def letters_topic(on_bad: str) -> str | None:
    """Returns the topic for unreadable values that a value of ``on_bad`` names; None if it names none."""
    return on_bad.removeprefix(LETTERS).strip() if on_bad.startswith(LETTERS) else None


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the names without empty names and duplicates. A text is split at its commas, and spaces are removed."""
    found = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    return tuple(dict.fromkeys(filter(None, found)))
