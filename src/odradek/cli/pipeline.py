"""``odradek pipeline``: pipelines between topics, tables and the offsets topic, on Spark."""

from __future__ import annotations

import typer

from odradek.cli.options import CONTEXT

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Pipelines on Spark: topics into tables, ranges once more, the history of groups.",
)


@app.callback()
def _pipeline() -> None:
    """Pipelines on Spark: topics into tables, ranges once more, the history of groups."""
