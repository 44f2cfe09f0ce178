"""``odradek groups``: its commands in the order of the help text."""

from __future__ import annotations

import typer

from odradek.cli.groups import deletion, describe, members, plans, reset, states
from odradek.cli.options import CONTEXT

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Consumer groups of a Kafka cluster.",
    epilog="Example:\n\n\b\n  odradek groups describe --group flight-lake -b 127.0.0.1:9092",
)

app.command(epilog=describe.EPILOG)(describe.describe)
app.command(name="list", epilog=states.LIST_EPILOG)(states.list_)
app.command(epilog=states.LOCATE_EPILOG)(states.locate)
app.command(epilog=members.EPILOG)(members.members)
app.command(epilog=states.STATE_EPILOG)(states.state)
app.command(epilog=deletion.DELETE_EPILOG)(deletion.delete)
app.command(name="delete-offsets", epilog=deletion.DELETE_OFFSETS_EPILOG)(deletion.delete_offsets)
app.command(epilog=reset.EPILOG)(reset.reset)
app.command(epilog=plans.PLANS_EPILOG)(plans.plans)
app.command(epilog=plans.APPLY_EPILOG)(plans.apply)
