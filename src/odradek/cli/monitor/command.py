"""The command line of ``odradek monitor``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.option_fields import of_fields
from odradek.cli.options import CONTEXT, TIMEOUT_MS, Bootstrap, CommandConfig, Timeout
from odradek.cli.pipeline.options import AllowedLag, Intervals, MinDistance, MinimumComplete

Source = Annotated[
    str,
    typer.Option(
        metavar="auto|topic|fetch",
        help="Read __consumer_offsets, or look up offsets; auto: look them up where the topic may not be read.",
    ),
]


@dataclass(frozen=True)
class MonitorLine:
    """The command line of ``monitor``."""

    bootstrap_servers: Bootstrap
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Serve HTTP here; port 0: any.")] = "127.0.0.1:8000"
    interval: Annotated[str, typer.Option(metavar="SPAN", help="Poll logs and groups this often.")] = "10s"
    source: Source = "auto"
    cluster_name: Annotated[
        str, typer.Option(metavar="NAME", help="The cluster's name in metrics and in Burrow's API.")
    ] = "kafka"
    metrics_granularity: Annotated[
        str, typer.Option(metavar="auto|group|topic|partition", help="The finest lines of /metrics.")
    ] = "auto"
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Serve only clients that send the token in this file.")
    ] = None
    allowed_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A further Host name of this service. Repeatable.")
    ] = None
    intervals: Intervals = 10
    min_distance: MinDistance = "0s"
    minimum_complete: MinimumComplete = 0.0
    allowed_lag: AllowedLag = 0
    command_config: CommandConfig = None
    timeout_ms: Timeout = TIMEOUT_MS


EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek monitor -b 127.0.0.1:9092\n"
    "  odradek monitor -b kafka:9092 --command-config client.properties --listen 127.0.0.1:8000\n"
    "  odradek monitor -b kafka:9092 --listen 0.0.0.0:8000 --token-file token --allowed-host monitor.example.com"
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="monitor", epilog=EPILOG, context_settings=CONTEXT)
@of_fields()
def monitor(line: MonitorLine) -> None:
    """Follow the groups of a cluster and serve their lag and state over HTTP.

    The monitor reads __consumer_offsets from its start, joins no group, commits nothing and creates nothing. It serves
    /metrics for Prometheus, Burrow's API under /v3/kafka, its own API under /api/v1, /healthz and /readyz. The states
    are those of Burrow's rules.
    """
    from odradek.cli.monitor.monitor import run_monitor
    from odradek.cli.options import client_config
    from odradek.cli.pipeline.history import span_ms, verdict_rules_of
    from odradek.cli.terminal import CommandError
    from odradek.monitor.choices import SHORTEST_INTERVAL_MS

    config = client_config(line.bootstrap_servers, line.timeout_ms, line.command_config)
    rules = verdict_rules_of(line.intervals, line.min_distance, line.minimum_complete, line.allowed_lag)
    if (interval_ms := span_ms("--interval", line.interval)) < SHORTEST_INTERVAL_MS:
        raise CommandError(f"--interval {line.interval}: expected at least {SHORTEST_INTERVAL_MS} ms")
    run_monitor(line, interval_ms, config, rules)
