"""``odradek groups list``: all groups of a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, connect
from odradek.cli.terminal import CommandError, note_table, print_json

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups list -b 127.0.0.1:9092\n"
    "  odradek groups list --state Stable -b 127.0.0.1:9092 --json"
)


def list_(
    *,
    bootstrap: Bootstrap,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Only groups in this state (Stable, Empty, …). Repeatable."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--type", metavar="TYPE", help="Only groups of this type: classic, consumer, share, streams. Repeatable."
        ),
    ] = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """List all groups of a cluster with their type and state."""
    from odradek import lag

    states = [_known(value, _STATES, "--state") for value in state or ()]
    kinds = [_known(value, _TYPES, "--type") for value in kind or ()]
    with connect(bootstrap, timeout_ms, command_config) as admin:
        groups = admin.list_groups(states=states, types=kinds)
    if as_json:
        rows = [
            {"group": g.group_id, "type": g.type, "state": g.state, "protocol_type": g.protocol_type} for g in groups
        ]
        print_json(rows, indent=2)
        return
    note_table(lag.format_groups(groups))


_STATES = ("Stable", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
_TYPES = ("classic", "consumer", "share", "streams")


def _known(value: str, known: tuple[str, ...], option: str) -> str:
    for name in known:
        if name.lower() == value.lower():
            return name
    raise CommandError(f"{option} {value!r}: one of {', '.join(known)}")
