"""``odradek groups locate``: the partition that stores a group, and its coordinator."""

from __future__ import annotations

from typing import Annotated

import typer

from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, connect, given_names
from odradek.cli.terminal import CommandError, note, print_json

EPILOG = (
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

    groups = given_names([one for one in (name, option) if one is not None], "--group")
    if len(groups) != 1:
        raise CommandError("one GROUP is needed, as an argument or with --group")
    (group,) = groups
    with connect(bootstrap, timeout_ms, command_config) as admin:
        node = admin.coordinator(group)
        count = len(admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC].partitions)
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
