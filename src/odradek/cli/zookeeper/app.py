"""``odradek zookeeper``: its commands in the order of the help text."""

from __future__ import annotations

import typer

from odradek.cli.options import CONTEXT
from odradek.cli.zookeeper import delete, groups, migrate, offset_files, offsets, reset

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Offsets of groups in ZooKeeper, as consumers up to Kafka 1.1 keep them there.",
    epilog="Example:\n\n\b\n  odradek zookeeper describe --group billing -z 127.0.0.1:2181 -b 127.0.0.1:9092",
)

app.command(epilog=groups.GROUPS_EPILOG)(groups.groups)
app.command(epilog=offsets.DESCRIBE_EPILOG)(offsets.describe)
app.command(epilog=groups.OWNERS_EPILOG)(groups.owners)
app.command(epilog=reset.EPILOG)(reset.reset)
app.command(epilog=offset_files.EXPORT_EPILOG)(offset_files.export)
app.command(name="import", epilog=offset_files.IMPORT_EPILOG)(offset_files.import_file)
app.command(epilog=migrate.EPILOG)(migrate.migrate)
app.command(epilog=offsets.COMPARE_EPILOG)(offsets.compare)
app.command(epilog=delete.EPILOG)(delete.delete)
