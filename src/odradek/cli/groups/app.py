"""``odradek groups``: its commands in the order of the help text."""

from __future__ import annotations

from typing import ClassVar

import typer

from odradek.cli.command_tree import CommandHome, CommandsOnDemand
from odradek.cli.options import CONTEXT


class _GroupCommands(CommandsOnDemand):
    homes: ClassVar = {
        "describe": CommandHome("odradek.cli.groups.describe", "describe", "EPILOG"),
        "list": CommandHome("odradek.cli.groups.states", "list_", "LIST_EPILOG"),
        "locate": CommandHome("odradek.cli.groups.states", "locate", "LOCATE_EPILOG"),
        "members": CommandHome("odradek.cli.groups.members", "members", "EPILOG"),
        "state": CommandHome("odradek.cli.groups.states", "state", "STATE_EPILOG"),
        "delete": CommandHome("odradek.cli.groups.deletion", "delete", "DELETE_EPILOG"),
        "delete-offsets": CommandHome("odradek.cli.groups.deletion", "delete_offsets", "DELETE_OFFSETS_EPILOG"),
        "reset": CommandHome("odradek.cli.groups.reset", "reset", "EPILOG"),
        "plans": CommandHome("odradek.cli.groups.plans", "plans", "PLANS_EPILOG"),
        "apply": CommandHome("odradek.cli.groups.plans", "apply", "APPLY_EPILOG"),
    }


app = typer.Typer(
    cls=_GroupCommands,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=CONTEXT,
    help="Consumer groups of a Kafka cluster.",
    epilog="Example:\n\n\b\n  odradek groups describe --group flight-lake -b 127.0.0.1:9092",
)
