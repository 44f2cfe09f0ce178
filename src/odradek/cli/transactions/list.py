"""``odradek transactions list``: the transactional ids of a cluster with their states."""

from __future__ import annotations

from typing import Annotated

import typer

from odradek.cli.options import (
    LAST_INT64,
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    connect,
    table_or_blocks,
)
from odradek.cli.terminal import note_table, print_json

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek transactions list -b 127.0.0.1:9092\n"
    "  odradek transactions list --duration-filter 60000 -b 127.0.0.1:9092 --json"
)
_HEAD = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")


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
        found = admin.list_transactions(duration_ms=duration_filter, pattern=pattern)
    if as_json:
        print_json([row._asdict() for row in found], indent=2)
        return
    note_table(table_or_blocks(_HEAD, [tuple(map(str, row)) for row in found]))
