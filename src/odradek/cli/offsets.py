"""``odradek offsets``: the offsets topic of any Kafka."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from odradek.cli.options import CONTEXT, TIMEOUT_MS, Bootstrap, CommandConfig, Timeout, connect
from odradek.cli.terminal import error_line

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="The offsets topic of any Kafka, decoded.",
    epilog="Example:\n\n\b\n  odradek offsets dump --group flight-lake -b 127.0.0.1:9092",
)


@app.callback()
def _offsets() -> None:
    """The offsets topic of any Kafka, decoded."""


@app.command(
    epilog="Examples:\n\n\b\n"
    "  odradek offsets dump -b 127.0.0.1:9092\n"
    "  odradek offsets dump --group flight-lake --max 10 --json -b 127.0.0.1:9092",
)
def dump(
    *,
    bootstrap: Bootstrap,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only this group's commits.")] = None,
    max_lines: Annotated[int | None, typer.Option("--max", min=1, help="Stop after this many lines.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines, as Kafka 4's OffsetsMessageFormatter prints them.")
    ] = False,
    command_config: CommandConfig = None,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Print every commit that __consumer_offsets still holds, oldest first within each of its partitions.

    One line each: [group,topic,partition]::OffsetAndMetadata(...), and ::NULL for a deletion. Records of other
    kinds (group memberships) are left out.
    """
    from odradek.client import offsets_topic
    from odradek.core.records import format_json, format_line

    form = format_json if as_json else format_line
    with connect(bootstrap, timeout_ms, command_config) as admin:
        if not offsets_topic.partitions(admin):
            error_line("this cluster has no __consumer_offsets topic yet: no group has ever asked for its coordinator")
            return
        lines = (form(entry.key, entry.value) for entry in offsets_topic.entries(admin, group))
        for line in islice((line for line in lines if line is not None), max_lines):
            print(line)
