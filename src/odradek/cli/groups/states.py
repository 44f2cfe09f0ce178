"""``odradek groups list``, ``state`` and ``locate``: all groups of a cluster, their states and their coordinators."""

from __future__ import annotations

from typing import Annotated

import typer

from odradek.cli.groups.scope import AllGroups, Groups, Names, check_scope, chosen_groups, each_group, end_with
from odradek.cli.options import (
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    connect,
    given_names,
    shown_name,
    table_or_blocks,
)
from odradek.cli.suggestions import group_names
from odradek.cli.terminal import CommandError, note, note_table, print_json, warning_lines

LIST_EPILOG = (
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
    from odradek.lag import table as lag

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


STATE_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups state flight-lake -b 127.0.0.1:9092\n"
    "  odradek groups state --all-groups -b 127.0.0.1:9092 --json"
)


def state(
    names: Names = None,
    *,
    bootstrap: Bootstrap,
    group: Groups = None,
    all_groups: AllGroups = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the state of groups, their coordinator, their assignor, and the number of their members."""
    named = check_scope(group, all_groups, names)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        chosen = chosen_groups(admin, named, all_groups)
        groups, errors = each_group(admin, chosen, lambda name: admin.describe_groups([name])[name], "Describing")
    rows = [
        (
            g.group_id, f"{g.coordinator.host}:{g.coordinator.port} ({g.coordinator.node_id})", g.protocol or "-",
            g.state, str(len(g.members)),
        )
        for g in groups
    ]  # fmt: skip
    if as_json:
        keys = ("group", "coordinator", "assignment_strategy", "state", "members")
        print_json([dict(zip(keys, (*row[:4], int(row[4])), strict=True)) for row in rows], indent=2)
    elif rows:
        note_table(table_or_blocks(("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"), rows))
    end_with(errors)


LOCATE_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups locate flight-lake -b 127.0.0.1:9092\n"
    "  odradek groups locate --group flight-lake -b 127.0.0.1:9092 --json"
)


def locate(
    name: Annotated[str | None, typer.Argument(metavar="GROUP", help="The group; it need not exist.")] = None,
    *,
    bootstrap: Bootstrap,
    option: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="The group, as an option.")] = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show which partition of __consumer_offsets stores a group, and which broker coordinates it.

    The partition is Java's hash of the group's name modulo the topic's present number of partitions. The leader of
    that partition is the coordinator. If no group has used the topic yet, the cluster creates it.
    """
    from odradek.core.ids import OFFSETS_TOPIC, partition_for_group
    from odradek.text.similar_names import nearest

    groups = given_names([one for one in (name, option) if one is not None], "--group")
    if len(groups) != 1:
        given = (
            f"GROUP {shown_name(name or '')} and --group {shown_name(option or '')}"
            if groups
            else "missing argument 'GROUP'"
        )
        raise CommandError(f"{given}: give one group, as an argument or with --group")
    (group,) = groups
    with connect(bootstrap, timeout_ms, command_config) as admin:
        node = admin.coordinator(group)
        count = len(admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].partitions)
        known = group_names(admin)
    if known and group not in known:
        warning_lines(f"Warning: group {group} does not exist{nearest(group, known)}: this would be its place.")
    partition = partition_for_group(group, count)
    if as_json:
        coordinator = {"id": node.node_id, "host": node.host, "port": node.port}
        place = {"group": group, "topic": OFFSETS_TOPIC, "partition": partition, "partitions": count}
        print_json(place | {"coordinator": coordinator}, indent=2)
        return
    note(
        f"Group        {group}",
        f"Partition    {OFFSETS_TOPIC}-{partition} (of {count})",
        f"Coordinator  {node.host}:{node.port} (broker {node.node_id})",
    )
