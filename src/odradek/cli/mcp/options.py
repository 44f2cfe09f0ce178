"""The options of ``odradek mcp``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.monitor.options import MonitorToken, ReaderLine
from odradek.cli.options import brokers_option
from odradek.cli.reset_targets import PlansFolder


@dataclass(frozen=True, kw_only=True)
class McpLine(ReaderLine):
    """The command line of ``mcp``."""

    bootstrap_servers: Annotated[str | None, brokers_option("Addresses of brokers: follow this cluster.")] = None
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Read the `odradek monitor` at this address instead.")
    ] = None
    token_file: MonitorToken = None
    allow: Annotated[
        list[str] | None, typer.Option(metavar="reset", help="Let agents apply resets. Without it they only plan.")
    ] = None
    plans: PlansFolder = None
    checkpoints: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Let agents compare the Spark checkpoints in this folder with groups."),
    ] = None
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve HTTP here, with the path /mcp; port 0: any.")
    ] = None
    client_token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --listen: serve only clients that send the token in this file."),
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --listen: a further Host name of this service. Repeatable."),
    ] = None
    interval: Annotated[str, typer.Option(metavar="SPAN", help="With -b: poll logs and groups this often.")] = "10s"
