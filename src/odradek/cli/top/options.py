"""The options of ``odradek top``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

import typer

from odradek.cli.monitor.options import MonitorToken, ReaderLine
from odradek.cli.options import AsJson, brokers_option

_OF_BOTH = ("bootstrap_servers", "url", "token_file", "interval", "sort", "search", "group", "once", "as_json")


@dataclass(frozen=True, kw_only=True)
class TopLine(ReaderLine):
    """The command line of ``top``."""

    bootstrap_servers: Annotated[
        str | None, brokers_option("Addresses of brokers: follow this cluster, without a monitor.")
    ] = None
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Show what the `odradek monitor` at this address follows.")
    ] = None
    token_file: MonitorToken = None
    interval: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN",
            help="With -b: poll logs and groups this often (default: 10s); with --url: look for a new poll (1s).",
        ),
    ] = None
    sort: Annotated[
        str, typer.Option(metavar="[-]NAME", help="Order the groups by this column; - before it: the highest first.")
    ] = "-status"
    search: Annotated[str, typer.Option(metavar="TEXT", help="Show groups with this text in their names.")] = ""
    group: Annotated[str | None, typer.Option(metavar="NAME", help="Show this group.")] = None
    once: Annotated[bool, typer.Option("--once", help="Print one view and exit.")] = False
    as_json: AsJson = False

    def options_of_a_reader(self) -> list[str]:
        """Returns the given options that have no effect on a running monitor."""
        given = [one.name for one in fields(self) if getattr(self, one.name) != one.default]
        flags = {"timeout_ms": "--timeout"}
        return [
            flags.get(name, f"--{name.replace('_', '-')}")
            for name in given
            if name not in _OF_BOTH and name != "command_config"  # an environment variable may have it
        ]
