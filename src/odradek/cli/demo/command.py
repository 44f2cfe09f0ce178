"""The command line of ``odradek demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from odradek.cli.options import CONTEXT

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    name="demo",
    context_settings=CONTEXT,
    epilog="Examples:\n\n\b\n"
    "  odradek demo                    the whole flight data set, checked\n"
    "  odradek demo --more 1000        publish and process 1,000 further events\n"
    "  odradek demo --rewind -100      go back 100 records in each partition\n"
    "  odradek demo --rewind earliest  read everything again\n"
    "  odradek demo --rewind 2026-01-31T12:00:00Z\n"
    "  odradek demo --data-dir d --brokers 3   a cluster whose brokers are killed",
)
def demo(
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the broker's log and the table. Default: odradek/demo in your user data folder.",
        ),
    ] = None,
    more: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Publish this many further events first.")
    ] = None,
    rewind: Annotated[
        str | None,
        typer.Option(
            metavar="earliest|latest|TIMESTAMP|-N",
            help="Reset the group's committed offsets first; the query follows. TIMESTAMP is ISO 8601 (default zone:"
            " UTC); -N goes back N records in every partition.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the commits of step 5 as JSON lines.")] = False,
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=9,
            metavar="N",
            help="Run a cluster of N brokers, at least 3: a leader and the group's coordinator are killed half-way."
            " Default: as in the directory, or 1.",
        ),
    ] = None,
    events: Annotated[int | None, typer.Option(min=1, hidden=True, help="Publish only the first N events.")] = None,
    batch_events: Annotated[int | None, typer.Option(min=1, hidden=True, help="Events in one micro-batch.")] = None,
) -> None:
    """Run the whole pipeline on real flights: broker, producer, Spark, Parquet, offsets. Check it and show the lag.

    A second run on the same directory finds nothing new. The next run completes a run that was killed.
    """
    from odradek.cli.demo.demo import DemoOptions, run_demo

    raise typer.Exit(run_demo(DemoOptions(data_dir, more, rewind, json, brokers, events, batch_events)))
