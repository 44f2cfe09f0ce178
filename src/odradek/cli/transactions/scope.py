"""The options that several commands for transactions have."""

from __future__ import annotations

from typing import Annotated

import typer

from odradek.cli.options import LAST_INT32
from odradek.cli.terminal import CommandError

"""The largest values of the protocol's fields."""
TransactionalId = Annotated[
    str, typer.Option("--transactional-id", "--transactionalId", metavar="ID", help="The transactional id.")
]
Topic = Annotated[str, typer.Option("--topic", metavar="TOPIC", help="The topic.")]
Partition = Annotated[
    int, typer.Option("--partition", min=0, max=LAST_INT32, metavar="N", help="The partition's number.")
]
BrokerId = Annotated[
    int | None, typer.Option("--broker-id", metavar="ID", help="Ask this broker's replica, not the leader.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def given(name: str, option: str) -> str:
    """Returns the name. Raises CommandError for an empty one."""
    if not name:
        raise CommandError(f"{option}: the name cannot be empty")
    return name


def shown(value: object) -> str:
    """Returns a cell of a table; ``None`` for a missing value, as in Kafka's tool."""
    return "None" if value is None else str(value)
