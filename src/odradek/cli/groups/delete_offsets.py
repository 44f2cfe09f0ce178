"""``odradek groups delete-offsets``: deletes a group's offsets in topics that its members do not read."""

from __future__ import annotations

from typing import Annotated

import typer

from odradek.cli.confirmation import Yes, confirm
from odradek.cli.options import (
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    connect,
    given_names,
    parse_partitions,
)
from odradek.cli.terminal import EXIT_FAILED, CommandError, note, print_json

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups delete-offsets g --topic flights -b 127.0.0.1:9092\n"
    "  odradek groups delete-offsets --group g --topic flights:0,1 --yes -b 127.0.0.1:9092"
)


def delete_offsets(
    name: Annotated[str | None, typer.Argument(metavar="[GROUP]", help="The group, as with --group.")] = None,
    *,
    bootstrap: Bootstrap,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="The group.")] = None,
    topic: Annotated[
        list[str],
        typer.Option("--topic", metavar="TOPIC[:0,1]", help="A topic, or some of its partitions. Repeatable."),
    ],
    yes: Yes = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Delete a group's offsets in topics that none of its live members read."""
    from odradek.core.ids import TopicPartition

    if (group is None) == (name is None):
        raise CommandError("missing option '--group'" if group is None else f"give one group: {name!r} or {group!r}")
    (group,) = given_names([name or group or ""], "--group")
    topics, single = parse_partitions(topic)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        chosen = {TopicPartition(*pair) for pair in single}
        for one in topics:
            chosen.update(admin.partitions(one))
        held = admin.group_commits(group)
        gone = {tp: one and one.offset for tp, one in sorted(held.items()) if tp in chosen}
        if not gone:
            if not held:
                admin.describe_groups([group])  # raises GroupIdNotFound
            raise CommandError(f"group {group} has no offsets in {', '.join(topic)}: nothing was deleted", EXIT_FAILED)
        what = ", ".join(f"{tp} ({'-' if offset is None else offset})" for tp, offset in gone.items())
        if not confirm(f"Delete the offsets of group {group}: {what}?", yes):
            return
        admin.delete_group_offsets(group, sorted(chosen))
    if as_json:
        rows = [{"topic": tp.topic, "partition": tp.partition, "offset": offset} for tp, offset in gone.items()]
        print_json({"group": group, "deleted": rows}, indent=2)
    else:
        note(f"Deleted from group {group}: {what}.")
