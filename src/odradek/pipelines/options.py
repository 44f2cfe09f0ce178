"""The options of ``ingest`` and ``replay``, each declared once: for the functions, the commands, and the checks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from odradek.core.errors import ConfigError
from odradek.pipelines.value_formats import Framing, ValueFormat

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odradek.pipelines.lake import Added

TABLE_FORMATS = ("parquet", "delta")
WRITERS = ("workers", "spark")
"""``workers``: Spark's Python workers read, decode and write; ``spark``: Spark reads rows from them and writes."""


@dataclass(frozen=True)
class Option:
    """What the command line says of an option, and which values it may have. A field without one is for Python only.

    ``name`` is that of the command line; without one it follows from the field's.
    """

    help: str
    metavar: str | None = None
    name: str | None = None
    choices: tuple[str, ...] = ()
    minimum: int | None = None


SparkConf = Annotated[Mapping[str, str] | None, Option("A setting of Spark's. Repeatable.", "NAME=VALUE")]
Topics = Annotated[str | Sequence[str], Option("What to read, by name.", "T[,T]")]


@dataclass(frozen=True)
class PipelineOptions:
    """What both functions take: the cluster, how a table is written, and Spark.

    ``schema`` is text or a file: DDL for json, an Avro schema for avro. ``options`` are further ones of
    ``format("odradek")``. ``spark``: the session to use; else one is had for ``master`` with the settings ``conf``,
    and Java is started as the command starts it (docs/pipelines.md, how long a start takes).
    """

    bootstrap_servers: str
    _: KW_ONLY
    table_format: Annotated[str, Option("The kind of table.", choices=TABLE_FORMATS)] = "parquet"
    value_format: Annotated[str, Option("What values are.", choices=tuple(ValueFormat))] = "raw"
    schema: Annotated[
        str | None,
        Option(
            "json: fields as 'id bigint, name string' (none: any JSON, as text); avro: the Avro schema.", "TEXT|FILE"
        ),
    ] = None
    framing: Annotated[str, Option("What stands before an Avro value.", choices=tuple(Framing))] = "none"
    writer_schemas: Annotated[
        Mapping[int, str] | None,
        Option("An Avro schema by Confluent's id. Repeatable.", "ID=FILE", name="--writer-schema"),
    ] = None
    flat: Annotated[bool, Option("The value's fields become columns of the table.")] = False
    headers: Annotated[bool, Option("Keep the records' headers.")] = False
    keep_raw: Annotated[bool, Option("Keep every value's bytes, too, in column raw.")] = False
    on_bad: Annotated[
        str,
        Option("Unreadable values: keep them in columns raw and error, or stop.", choices=("keep", "fail")),
    ] = "keep"
    partition_by: Annotated[str | Sequence[str], Option("Folders by these columns.", "COL[,COL]")] = ()
    files_per_batch: Annotated[int | None, Option("Write with at most N tasks.", "N", minimum=1)] = None
    writer: Annotated[str, Option("Who writes: Spark's workers, columns all the way, or Spark.", choices=WRITERS)] = (
        "workers"
    )
    task_size: Annotated[str, Option("How much of the topics, as stored, a task reads at most.", "SIZE")] = "256m"
    options: Annotated[
        Mapping[str, str] | None,
        Option("Another option of format('odradek'). Repeatable.", "NAME=VALUE", name="--option"),
    ] = None
    storage_options: Annotated[
        Mapping[str, str] | None,
        Option("How deltalake reaches its storage. Repeatable.", "NAME=VALUE", name="--storage-option"),
    ] = None
    master: Annotated[str, Option("Spark's master: local[N], spark://HOST:PORT, …", "URL")] = "local[*]"
    conf: SparkConf = None
    spark: SparkSession | None = None


@dataclass(frozen=True, kw_only=True)
class IngestOptions(PipelineOptions):
    """``trigger``: without one, a run ends at the present end of the topics; with one, when ``stop`` is set.
    ``advance`` hears of each batch. Lists of names may be text with commas.
    """

    group: Annotated[str, Option("On whose behalf; its offsets follow the table.", "GROUP")]
    output: Annotated[str | Path, Option("The table's place.", "DIR|URI")]
    topics: Topics = ()
    subscribe_pattern: Annotated[str | None, Option("What to read, by a pattern of names.", "REGEX")] = None
    checkpoint: Annotated[
        str | Path | None, Option("Where Spark keeps the query's state. Default: in the table.", "DIR|URI")
    ] = None
    trigger: Annotated[str | None, Option("Go on: a batch every so often, until interrupted.", "10s")] = None
    batch_size: Annotated[str, Option("How much of the topics, as stored, a batch reads at most.", "SIZE")] = "1g"
    stop: threading.Event | None = None
    advance: Callable[[Added], None] = lambda added: None


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(PipelineOptions):
    """What is read is said in one of three ways: ``offsets``; ``start`` and ``end`` of ``topics``; or ``read_by``.
    ``producer_options`` (``{"compression.type": "zstd"}``) hold for sending alone, those of the connection among
    ``options`` for sending, too.
    """

    topics: Topics = ()
    start: Annotated[str, Option("Where to begin in each partition.", "earliest|OFFSET|TIME", name="--from")] = (
        "earliest"
    )
    end: Annotated[str, Option("Where to end, itself not included.", "latest|OFFSET|TIME", name="--to")] = "latest"
    offsets: Annotated[str | None, Option('Ranges by hand: {"events":{"0":[100,200]}}.', "JSON")] = None
    read_by: Annotated[str | None, Option("What this group read, as its commits tell.", "GROUP")] = None
    since: Annotated[str | None, Option("With --read-by: from its last commit before this on.", "TIME")] = None
    until: Annotated[str | None, Option("With --read-by: up to its last commit before this.", "TIME")] = None
    allow_missing: Annotated[bool, Option("Go on with what is left where records or commits are gone.")] = False
    output: Annotated[str | Path | None, Option("Into this table, once.", "DIR|URI")] = None
    to_topic: Annotated[str | None, Option("Into this topic, at least once.", "TOPIC")] = None
    keep_partitions: Annotated[bool, Option("Into the topic's partition of the same number.")] = False
    keep_timestamps: Annotated[bool, Option("With the records' own times (retention goes by them).")] = False
    producer_options: Annotated[
        Mapping[str, str] | None,
        Option(
            "With --to-topic: a setting of the producer, as compression.type=zstd. Repeatable.",
            "NAME=VALUE",
            name="--producer-option",
        ),
    ] = None
    again: Annotated[bool, Option("Also if the table holds this replay already.")] = False
    dry_run: Annotated[bool, Option("Show the ranges, read nothing.")] = False


class Declared(NamedTuple):
    """A field with an ``Option``, and the type of its values."""

    type: Any  # a type, or a union of types, which have no common class
    option: Option


def hints_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, ``Annotated`` where they are. Loads no Spark."""
    return get_type_hints(kind, localns={"SparkSession": object, "Added": object}, include_extras=True)


def declared(kind: type) -> Mapping[str, Declared]:
    """The fields of a dataclass that have an ``Option``, by name."""
    found: dict[str, Declared] = {}
    for name, hint in hints_of(kind).items():
        if get_origin(hint) is Annotated:
            of_type, *more = get_args(hint)
            options = [one for one in more if isinstance(one, Option)]
            if options:
                found[name] = Declared(of_type, options[0])
    return found


def check_values(options: PipelineOptions) -> None:
    """Raises ConfigError for a value that its option cannot have."""
    for name, (_, option) in declared(type(options)).items():
        value = getattr(options, name)
        words = name.replace("_", " ")
        if option.choices and value not in option.choices:
            raise ConfigError(f"{words} {value!r} is unknown; choose one of {', '.join(option.choices)}")
        if option.minimum is not None and value is not None and value < option.minimum:
            raise ConfigError(f"{words} {value}: expected {option.minimum} or more")


def names(given: str | Sequence[str]) -> tuple[str, ...]:
    """A list of names, or one with commas, without blanks and repetition."""
    found = [name.strip() for name in given.split(",")] if isinstance(given, str) else given
    return tuple(dict.fromkeys(filter(None, found)))
