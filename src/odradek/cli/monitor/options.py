"""The options of ``odradek monitor``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.options import TIMEOUT_MS, Bootstrap, CommandConfig, Timeout
from odradek.cli.pipeline.options import AllowedLag, Intervals, MinDistance, MinimumComplete

if TYPE_CHECKING:
    from odradek.history.verdict_rules import VerdictRules

Source = Annotated[
    str,
    typer.Option(
        metavar="auto|topic|fetch",
        help="Read __consumer_offsets, or look up offsets; auto: look them up where the topic may not be read.",
    ),
]


MonitorToken = Annotated[
    Path | None, typer.Option(metavar="FILE", help="With --url: the file with the monitor's token.")
]


@dataclass(frozen=True, kw_only=True)
class ReaderLine:
    """The options of a reader that follows a cluster, and of the rules by which it judges."""

    source: Source = "auto"
    intervals: Intervals = 10
    min_distance: MinDistance = "0s"
    minimum_complete: MinimumComplete = 0.0
    allowed_lag: AllowedLag = 0
    command_config: CommandConfig = None
    timeout_ms: Timeout = TIMEOUT_MS

    def rules(self) -> VerdictRules:
        """Returns the rules of verdicts. Raises CommandError."""
        from odradek.cli.pipeline.history import verdict_rules_of

        return verdict_rules_of(self.intervals, self.min_distance, self.minimum_complete, self.allowed_lag)


@dataclass(frozen=True, kw_only=True)
class MonitorLine(ReaderLine):
    """The command line of ``monitor``."""

    bootstrap_servers: Bootstrap
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Serve HTTP here; port 0: any.")] = "127.0.0.1:8000"
    interval: Annotated[str, typer.Option(metavar="SPAN", help="Poll logs and groups this often.")] = "10s"
    cluster_name: Annotated[
        str, typer.Option(metavar="NAME", help="The cluster's name in metrics and in Burrow's API.")
    ] = "kafka"
    metrics_granularity: Annotated[
        str, typer.Option(metavar="auto|group|topic|partition", help="The finest lines of /metrics.")
    ] = "auto"
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve only clients that send the token in this file.")
    ] = None
    change_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --allow: lines NAME TOKEN, the tokens that may change.")
    ] = None
    allow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="reset,delete-offsets,delete-group", help="With --data: let people change offsets on the pages."
        ),
    ] = None
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the history, incidents, and changes with their undo here."),
    ] = None
    keep: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="With --data: keep history and incidents this long. Default: 30d."),
    ] = None
    keep_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="With --data: the largest size of the history. Default: 1g.")
    ] = None
    webhooks: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --data: announce incidents to the webhooks in this file.")
    ] = None
    test_webhooks: Annotated[
        bool, typer.Option("--test-webhooks", help="Send a test message to each webhook of --webhooks, and end.")
    ] = False
    allowed_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further Host name of this service. Repeatable.")
    ] = None
