"""``odradek pipeline``: pipelines on Spark between topics, tables and the offsets topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

import typer

from odradek.cli.command_config import without_values
from odradek.cli.option_fields import of_fields
from odradek.cli.options import CONTEXT
from odradek.cli.pipeline.history import EPILOG, SUMMARY, history
from odradek.cli.pipeline.options import AdoptLine, IngestLine, PipelineLine, ReplayLine, TransformLine, VerifyLine
from odradek.cli.termination import terminable
from odradek.pipelines.options import PipelineOptions

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Pipelines on Spark: topics into tables and topics, replays of ranges, the history of groups.",
    epilog="Example:\n\n\b\n"
    "  odradek pipeline ingest --topics events --group event-lake --output lake/events -b 127.0.0.1:9092",
)


@app.callback()
def _pipeline() -> None:
    """Pipelines on Spark: topics into tables and topics, replays of ranges, the history of groups."""


app.command(short_help=SUMMARY, epilog=EPILOG)(history)


L = TypeVar("L", IngestLine, AdoptLine, ReplayLine, TransformLine, VerifyLine)


def _run(command: Callable[[L], int], request: L) -> NoReturn:
    """Runs a command, and ends the program with its exit code. SIGTERM ends it in order, and no value of the file of
    settings is shown."""
    with terminable(), without_values(request.command_config):
        code = command(request)
    raise typer.Exit(code)


@app.command(
    short_help="Read topics into a lake table, each record once.",
    epilog="Examples:\n\n\b\n"
    "  odradek pipeline ingest --topics events --group event-lake --output lake/events \\\n"
    "      --value-format json --schema 'id bigint, name string' -b 127.0.0.1:9092\n"
    "  odradek pipeline ingest --subscribe-pattern 'shop-.*' --group shop-lake --output lake/shop \\\n"
    "      --table-format delta --trigger 10s -b 127.0.0.1:9092\n"
    "  odradek pipeline ingest --topics events --group event-lake --output lake/events \\\n"
    "      --progress json -b 127.0.0.1:9092 2> progress.jsonl",
)
@of_fields(PipelineOptions, PipelineLine)
def ingest(request: IngestLine) -> None:
    """Write the records that a group has not read yet into a Parquet or Delta table, each record once.

    The next run completes a run that was killed. With --trigger, Ctrl-C and SIGTERM end the run after the current
    micro-batch, otherwise at once. Each micro-batch is committed to the group after it is in the table.
    Records of aborted transactions are read, too, except with --option kafka.isolation.level=read_committed.
    """
    from odradek.cli.pipeline.ingest import run_ingest_command

    _run(run_ingest_command, request)


@app.command(
    short_help="Let a new checkpoint begin at the offsets of a table.",
    epilog="Example:\n\n\b\n"
    "  odradek pipeline adopt --group event-lake --output lake/events -b 127.0.0.1:9092\n"
    "  odradek pipeline adopt --group event-lake --output lake/events --execute -b 127.0.0.1:9092",
)
@of_fields()
def adopt(request: AdoptLine) -> None:
    """Show what an adoption of a table does, or do it with --execute. No other pipeline may write to the table.

    Use it if ingest refuses a checkpoint that does not agree with the table: it was restored from a copy, or is lost.
    The group is set to the offsets after the rows of the table, earlier checkpoints can add nothing more, and the
    present checkpoint gets another name. The next run of ingest begins a new checkpoint there.
    """
    from odradek.cli.pipeline.adopt import run_adopt_command

    _run(run_adopt_command, request)


@app.command(
    short_help="Read ranges of topics again, into a table or a topic.",
    epilog="Examples:\n\n\b\n"
    "  odradek pipeline replay --topics events --from 2026-01-31T12:00 --to 2026-01-31T13:00 \\\n"
    "      --output lake/noon -b 127.0.0.1:9092\n"
    '  odradek pipeline replay --offsets \'{"events":{"0":[100,200]}}\' --to-topic again -b 127.0.0.1:9092\n'
    "  odradek pipeline replay --topics events --to-topic copies --exactly-once -b 127.0.0.1:9092\n"
    "  odradek pipeline replay --read-by billing --since 2026-01-31T12:00 --dry-run -b 127.0.0.1:9092",
)
@of_fields(PipelineOptions, PipelineLine)
def replay(request: ReplayLine) -> None:
    """Read ranges of topics again: by offsets, by times, or what a group has read between two of its commits.

    A replay into a table is identified by its ranges: a second run of the same replay adds nothing, even after a kill.
    With --exactly-once, a replay into a topic is identified by the command: a second run sends what is not yet sent.
    Records of aborted transactions are read, too, except with --exactly-once, or with
    --option kafka.isolation.level=read_committed.
    """
    from odradek.cli.pipeline.replay import run_replay_command

    _run(run_replay_command, request)


@app.command(
    short_help="Transform topics into a topic with SQL or Python, each row once.",
    epilog="Examples:\n\n\b\n"
    "  odradek pipeline transform --topics orders --group big-orders --to-topic big \\\n"
    "      --checkpoint state/big --value-format json --schema 'id bigint, total double' \\\n"
    "      --sql 'SELECT key, to_json(value) AS value FROM records WHERE value.total > 100' \\\n"
    "      -b 127.0.0.1:9092\n"
    "  odradek pipeline transform --topics orders --group clean --to-topic clean \\\n"
    "      --checkpoint state/clean --function jobs:clean --trigger 10s -b 127.0.0.1:9092",
)
@of_fields()
def transform(request: TransformLine) -> None:
    """Transform the records that a group has not read yet, and write the rows to a topic, exactly once.

    Each micro-batch is one transaction of the rows and the group's offsets: consumers with read_committed see all of it
    or nothing, also after a kill. The next run completes a run that was killed. --sql reads the view 'records', with
    the columns key, value, headers, topic, partition, offset and timestamp; the result needs a column value and may
    have key, headers and partition. --function gets 'records' as a DataFrame. With --trigger, Ctrl-C and SIGTERM end
    the run after the current micro-batch, otherwise at once.
    """
    from odradek.cli.pipeline.transform import run_transform_command

    _run(run_transform_command, request)


@app.command(
    short_help="Check a table of records for repeated and lost offsets, of any tool.",
    epilog="Examples:\n\n\b\n"
    "  odradek pipeline verify lake/events\n"
    "  odradek pipeline verify lake/events --group event-lake -b 127.0.0.1:9092\n"
    "  odradek pipeline verify s3://lake/events --topic events --offset-column kafka_offset",
)
@of_fields()
def verify(request: VerifyLine) -> None:
    """Read the topic, partition and offset columns of a table, and say which offsets it has twice or not at all.

    With -b, the log explains what is missing: markers of transactions, aborted records, compaction, retention, or a
    loss. With --group, the group's commits are compared with the table. The exit code is 1 for a repeat, a loss, or a
    missing offset without a cause. The table may come from any tool; nothing is written.
    """
    from odradek.cli.pipeline.verify import run_verify_command

    _run(run_verify_command, request)
