"""The command line of ``odradek monitor``."""

from __future__ import annotations

import typer

from odradek.cli.monitor.options import MonitorLine, ReaderLine
from odradek.cli.option_fields import of_fields
from odradek.cli.options import CONTEXT

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek monitor -b 127.0.0.1:9092\n"
    "  odradek monitor -b kafka:9092 --command-config client.properties --listen 127.0.0.1:8000\n"
    "  odradek monitor -b kafka:9092 --listen 0.0.0.0:8000 --token-file token --allowed-host monitor.example.com\n"
    "  odradek monitor -b kafka:9092 --data ./monitor --webhooks webhooks.toml\n"
    "  odradek monitor -b 127.0.0.1:9092 --data ./monitor --allow reset,delete-offsets"
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(name="monitor", epilog=EPILOG, context_settings=CONTEXT)
@of_fields(ReaderLine)
def monitor(line: MonitorLine) -> None:
    """Follow the groups of a cluster and serve their lag and state over HTTP.

    The monitor reads __consumer_offsets from its start, joins no group, and changes nothing without --allow. It serves
    /metrics for Prometheus, Burrow's API under /v3/kafka, its own API under /api/v1, /healthz and /readyz. The states
    are those of Burrow's rules.
    """
    if line.test_webhooks:
        from odradek.cli.monitor.incidents import send_test

        raise typer.Exit(send_test(line))
    from odradek.cli.monitor.monitor import poll_interval_ms, run_monitor
    from odradek.cli.options import client_config

    config = client_config(line.bootstrap_servers, line.timeout_ms, line.command_config)
    rules = line.rules()
    run_monitor(line, poll_interval_ms(line.interval), config, rules)
