"""``odradek groups describe``: the committed offsets of groups, and their lag."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.groups.lag_output import SORTS, GroupWithTimes, as_json, in_order, print_groups
from odradek.cli.groups.scope import AllGroups, Groups, Names, check_scope, consumer_groups, each_group, end_with
from odradek.cli.option_fields import of_fields
from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, connect
from odradek.cli.terminal import CommandError, error_line, note, print_json
from odradek.core.errors import OdradekError

if TYPE_CHECKING:
    from odradek.client.admin import Admin

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups describe flight-lake -b 127.0.0.1:9092\n"
    "  odradek groups describe --all-groups --sort lag --totals -b 127.0.0.1:9092\n"
    "  odradek groups describe --group flight-lake --time --watch --interval 5 -b 127.0.0.1:9092\n"
    "  odradek groups describe --group a --group b -b broker-1:9092,broker-2:9092 --json"
)
_wait = threading.Event().wait
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


EVERY_S = 2.0
"""The time between two rounds of --watch."""


@dataclass(frozen=True, kw_only=True)
class GroupLagLine:
    """The options of the command."""

    names: Names = None
    bootstrap: Bootstrap
    group: Groups = None
    all_groups: AllGroups = False
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="|".join(SORTS),
            help="Order of the rows; with lag and time, the largest is first.",
        ),
    ] = "member"
    with_times: Annotated[
        bool, typer.Option("--time", help="Also show the lag in time: from the first unread record to the newest.")
    ] = False
    totals: Annotated[
        bool, typer.Option("--totals", help="Also print the sum of the lags. On a terminal it is always printed.")
    ] = False
    watch: Annotated[bool, typer.Option("--watch", help="Repeat, until interrupted.")] = False
    interval: Annotated[
        float | None,
        typer.Option("--interval", min=0.1, metavar="SECONDS", help="Time between two rounds of --watch. Default: 2."),
    ] = None
    command_config: CommandConfig = None
    as_json: AsJson = False
    timeout_ms: Timeout = TIMEOUT_MS


@of_fields()
def describe(line: GroupLagLine) -> None:
    """Show the committed offsets of groups and their lag, as kafka-consumer-groups --describe does.

    CURRENT-OFFSET is the next record to read. LAG is the number of records from there to the end of the log. "-"
    stands for a missing value.
    """
    if line.sort not in SORTS:
        raise CommandError(f"--sort {line.sort!r}: one of {', '.join(SORTS)}")
    if line.interval is not None and not line.watch:
        raise CommandError("--interval: it is the time between two rounds: add --watch")
    named = check_scope(line.group, line.all_groups, line.names, allow_empty=True)
    with connect(line.bootstrap, line.timeout_ms, line.command_config) as admin:
        if line.watch:
            _watch(admin, line, named)
            return
        groups, errors = _described(admin, line, named)
        _print(line, groups)
    end_with(errors)


def _described(admin: Admin, line: GroupLagLine, named: list[str]) -> tuple[list[GroupWithTimes], list[OdradekError]]:
    from odradek import lag

    def ask(name: str) -> GroupWithTimes:
        table = lag.describe(admin, name)
        if not line.with_times and line.sort != "time":
            return GroupWithTimes(table, None)
        from odradek.lag.time_lag import time_lags  # it reads records

        return GroupWithTimes(table, time_lags(admin, table))

    chosen, failed = consumer_groups(admin, named, line.all_groups)
    groups, errors = each_group(admin, chosen, ask, "Describing", failed)
    return in_order(groups, line.sort), errors


def _print(line: GroupLagLine, groups: list[GroupWithTimes]) -> None:
    if line.as_json:
        print_json([as_json(one, line.sort) for one in groups], indent=None if line.watch else 2)
    else:
        print_groups(groups, line.sort, totals=line.totals or sys.stdout.isatty())


def _watch(admin: Admin, line: GroupLagLine, named: list[str]) -> None:
    """Prints the groups again and again. Ctrl-C is the normal end; a cluster that is away for a time is no end."""
    has_begun = False
    try:
        while True:
            try:
                groups, _ = _described(admin, line, named)
            except OdradekError as error:
                if not has_begun:
                    raise
                error_line(str(error))
            else:
                has_begun = True
                if not line.as_json:
                    clear = _CLEAR if sys.stdout.isatty() else ""
                    print(clear, end="")
                    note(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}, every {line.interval or EVERY_S:g} s")
                _print(line, groups)
            _wait(line.interval or EVERY_S)
    except KeyboardInterrupt:
        return
