"""``odradek groups``: its commands in the order of the help text."""

from __future__ import annotations

import typer

from odradek.cli.groups import delete, delete_offsets, describe, list, locate, members, reset, state
from odradek.cli.options import CONTEXT

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Consumer groups of a Kafka cluster.",
    epilog="Example:\n\n\b\n  odradek groups describe --group flight-lake -b 127.0.0.1:9092",
)

app.command(epilog=describe.EPILOG)(describe.describe)
app.command(name="list", epilog=list.EPILOG)(list.list_)
app.command(epilog=locate.EPILOG)(locate.locate)
app.command(epilog=members.EPILOG)(members.members)
app.command(epilog=state.EPILOG)(state.state)
app.command(epilog=delete.EPILOG)(delete.delete)
app.command(name="delete-offsets", epilog=delete_offsets.EPILOG)(delete_offsets.delete_offsets)
app.command(epilog=reset.EPILOG)(reset.reset)
