"""The options of ``odradek mcp``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.monitor.options import Source
from odradek.cli.options import TIMEOUT_MS, CommandConfig, Timeout, brokers_option
from odradek.cli.pipeline.options import AllowedLag, Intervals, MinDistance, MinimumComplete

PlansFolder = Annotated[
    Path | None,
    typer.Option(
        "--plans", metavar="DIR", help="The folder of the plans. Default: plans in odradek's folder of user data."
    ),
]


@dataclass(frozen=True)
class McpLine:
    """The command line of ``mcp``."""

    bootstrap_servers: Annotated[str | None, brokers_option("Addresses of brokers: follow this cluster.")] = None
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Read the `odradek monitor` at this address instead.")
    ] = None
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --url: the file with the monitor's token.")
    ] = None
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
    source: Source = "auto"
    intervals: Intervals = 10
    min_distance: MinDistance = "0s"
    minimum_complete: MinimumComplete = 0.0
    allowed_lag: AllowedLag = 0
    command_config: CommandConfig = None
    timeout_ms: Timeout = TIMEOUT_MS
