"""The options of ``odradek pipeline ingest`` and ``replay``, each written once, as fields of what the commands get."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from odradek.cli.command_config import read_properties
from odradek.cli.options import AsJson, Bootstrap, CommandConfig, named_values
from odradek.cli.terminal import CommandError

if TYPE_CHECKING:
    from odradek.pipelines.ingest_job import Target

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
Writer = Annotated[
    str,
    typer.Option(
        "--writer", metavar="workers|spark", help="Who writes: Spark's workers, columns all the way, or Spark."
    ),
]
BatchSize = Annotated[
    str, typer.Option("--batch-size", metavar="SIZE", help="How much of the topics, as stored, a batch reads at most.")
]
TaskSize = Annotated[
    str, typer.Option("--task-size", metavar="SIZE", help="How much of the topics, as stored, a task reads at most.")
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
ShowProgress = Annotated[
    str,
    typer.Option(
        "--progress",
        metavar="auto|json|none",
        help="On stderr: a bar where that is a terminal, or a line of JSON every second and for each batch.",
    ),
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
ProducerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--producer-option",
        metavar="NAME=VALUE",
        help="With --to-topic: a setting of the producer, as compression.type=zstd. Repeatable.",
    ),
]
Again = Annotated[bool, typer.Option("--again", help="Also if the table holds this replay already.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the ranges, read nothing.")]


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """What both commands take: the cluster, Spark, and how a table is written."""

    bootstrap: Bootstrap
    table_format: TableFormat = "parquet"
    value_format: ValueFormat = "raw"
    schema: Schema = None
    framing: Framing = "none"
    writer_schema: WriterSchema = None
    flat: Flat = False
    headers: Headers = False
    keep_raw: KeepRaw = False
    on_bad: OnBad = "keep"
    partition_by: PartitionBy = None
    files_per_batch: FilesPerBatch = None
    writer: Writer = "workers"
    task_size: TaskSize = "256m"
    option: SourceOption = None
    storage_option: StorageOption = None
    master: Master = "local[*]"
    conf: SparkConf = None
    as_json: AsJson = False
    command_config: CommandConfig = None

    def source_options(self, **own: str) -> dict[str, str]:
        """Of ``format("odradek")``; what ``--option`` says wins. Raises CommandError."""
        return spark_client_options(self.command_config) | own | named_values(self.option, "--option")

    def target(self, output: str, checkpoint: str | None = None) -> Target:
        """The table. Raises CommandError, ConfigError."""
        from odradek.pipelines.ingest_job import make_target

        return make_target(
            output,
            table_format=self.table_format,
            value_format=self.value_format,
            schema=self.schema,
            framing=self.framing,
            writer_schemas=writer_schemas(self.writer_schema),
            flat=self.flat,
            headers=self.headers,
            keep_raw=self.keep_raw,
            on_bad=self.on_bad,
            partition_by=names(self.partition_by),
            files_per_batch=self.files_per_batch,
            checkpoint=checkpoint,
            writer=self.writer,
            task_size=self.task_size,
            storage_options=named_values(self.storage_option, "--storage-option"),
        )


@dataclass(frozen=True, kw_only=True)
class IngestOptions(PipelineOptions):
    """The command line of ``ingest``, as it was given."""

    group: Group
    output: Output
    topics: Topics = None
    subscribe_pattern: Pattern = None
    checkpoint: Checkpoint = None
    available_now: AvailableNow = False
    trigger: Trigger = None
    batch_size: BatchSize = "1g"
    start: StartWithout = "earliest"
    max_offsets: MaxOffsets = None
    progress: ShowProgress = "auto"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(PipelineOptions):
    """The command line of ``replay``, as it was given."""

    topics: Topics = None
    start: Start = "earliest"
    end: End = "latest"
    offsets: Offsets = None
    read_by: ReadBy = None
    since: Since = None
    until: Until = None
    allow_missing: AllowMissing = False
    output: IntoTable = None
    to_topic: IntoTopic = None
    keep_partitions: KeepPartitions = False
    keep_timestamps: KeepTimestamps = False
    producer_option: ProducerOption = None
    again: Again = False
    dry_run: DryRun = False


def of_fields(command: Callable[..., None]) -> Callable[..., None]:
    """A command that Typer can call, of a function whose one argument is a dataclass: its fields are the options.

    In ``--help`` those without a default come first, then the class's own, then those it shares.
    """
    found: list[tuple[str, Any]] = [pair for pair in get_type_hints(command).items() if is_dataclass(pair[1])]
    ((name, kind),) = found
    hints = get_type_hints(kind, include_extras=True)
    order = sorted(fields(kind), key=lambda field: (field.default is not MISSING, field.name not in vars(kind)))
    parameters = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in order
    ]

    @functools.wraps(command)
    def called(**given: Any) -> None:
        command(**{name: kind(**given)})

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # a function's own
    called.__annotations__ = {field.name: hints[field.name] for field in order}
    return called


def spark_client_options(command_config: CommandConfig) -> dict[str, str]:
    """The client's settings as options of our formats. Raises CommandError."""
    given = {} if command_config is None else read_properties(command_config)
    return {"kafka.client.id": "odradek-pipeline"} | {f"kafka.{name}": value for name, value in given.items()}


def writer_schemas(given: Sequence[str] | None) -> dict[int, str]:
    """Avro schemas, or their files, by Confluent's ids. Raises CommandError."""
    found: dict[int, str] = {}
    for name, value in named_values(given, "--writer-schema").items():
        if not (name.isascii() and name.isdigit()):
            raise CommandError(f"--writer-schema {name}={value}: expected ID=FILE, the id a number")
        found[int(name)] = value
    return found


def names(text: str | None) -> tuple[str, ...]:
    """A list with commas, without blanks and repetition."""
    return tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def check_pyspark() -> None:
    """Raises CommandError where the extra is missing: better said before anything is looked at."""
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise CommandError("pipelines need PySpark: pip install 'odradek[spark]'")
