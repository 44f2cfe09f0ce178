"""``odradek transactions``: its commands in the order of the help text."""

from __future__ import annotations

import typer

from odradek.cli.options import CONTEXT
from odradek.cli.transactions import abort, describe, describe_producers, force_terminate, hanging_transactions, list

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Transactions of a Kafka cluster.",
    epilog="Example:\n\n\b\n  odradek transactions find-hanging --topic flights -b 127.0.0.1:9092",
)

app.command(name="list", epilog=list.EPILOG)(list.list_)
app.command(epilog=describe.EPILOG)(describe.describe)
app.command(name="describe-producers", epilog=describe_producers.EPILOG)(describe_producers.describe_producers)
app.command(name="find-hanging", epilog=hanging_transactions.EPILOG)(hanging_transactions.find_hanging)
app.command(epilog=abort.EPILOG)(abort.abort)
app.command(name="force-terminate", epilog=force_terminate.EPILOG)(force_terminate.force_terminate)
