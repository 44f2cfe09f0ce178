"""``odradek zookeeper``: its commands in the order of the help text."""

from __future__ import annotations

import typer

from odradek.cli.options import CONTEXT
from odradek.cli.zookeeper import compare, delete, describe, export, groups, import_file, migrate, reset

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Offsets of groups in ZooKeeper, as consumers up to Kafka 1.1 keep them there.",
    epilog="Example:\n\n\b\n  odradek zookeeper describe --group billing -z 127.0.0.1:2181 -b 127.0.0.1:9092",
)

app.command(epilog=groups.GROUPS_EPILOG)(groups.groups)
app.command(epilog=describe.EPILOG)(describe.describe)
app.command(epilog=groups.OWNERS_EPILOG)(groups.owners)
app.command(epilog=reset.EPILOG)(reset.reset)
app.command(epilog=export.EPILOG)(export.export)
app.command(name="import", epilog=import_file.EPILOG)(import_file.import_file)
app.command(epilog=migrate.EPILOG)(migrate.migrate)
app.command(epilog=compare.EPILOG)(compare.compare)
app.command(epilog=delete.EPILOG)(delete.delete)
