"""``odradek groups delete`` and ``delete-offsets``: groups without live members, and offsets that no member reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.groups.scope import AllGroups, Groups, Names, check_scope, chosen_groups
from odradek.cli.options import (
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    CommandConfig,
    Timeout,
    Yes,
    confirm,
    connect,
    given_names,
    parse_partitions,
)
from odradek.cli.suggestions import group_names, some_groups
from odradek.cli.terminal import (
    EXIT_FAILED,
    NO_NAME,
    CommandError,
    error_line,
    exit_code_of,
    note,
    print_json,
    progress,
)
from odradek.core.errors import KafkaError

if TYPE_CHECKING:
    from odradek.client.admin import Admin

DELETE_EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups delete old-job -b 127.0.0.1:9092\n"
    "  odradek groups delete --group a --group b --yes -b 127.0.0.1:9092"
)


def delete(
    names: Names = None,
    *,
    bootstrap: Bootstrap,
    group: Groups = None,
    all_groups: AllGroups = False,
    yes: Yes = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Delete groups without live members, with all their offsets."""
    from odradek.client.errors import GroupIdNotFound

    named = check_scope(group, all_groups, names, allow_empty=True)
    failed: dict[str, KafkaError] = {}
    with connect(bootstrap, timeout_ms, command_config) as admin:
        chosen = chosen_groups(admin, named, all_groups)
        failed |= {name: error for name in chosen if (error := _obstacle(admin, name)) is not None}
        deletable = [name for name in chosen if name not in failed]
        if not chosen or (deletable and not confirm(f"Delete {_shown(deletable)} with all offsets?", yes)):
            return
        with progress("Deleting", len(deletable), "groups") as advance:
            for name in deletable:
                try:
                    admin.delete_groups([name])
                except KafkaError as error:
                    failed[name] = error
                advance(1)
        missing = any(isinstance(error, GroupIdNotFound) for error in failed.values())
        known = group_names(admin) if missing else []
    done = [name for name in chosen if name not in failed]
    if as_json:
        print_json({"deleted": done, "failed": {k: str(v) for k, v in failed.items()}}, indent=2)
    elif done:
        note(f"Deleted {_shown(done)}.")
    if failed:
        from odradek.text.similar_names import nearest

        for name, refused in failed.items():
            is_missing = isinstance(refused, GroupIdNotFound)
            error_line(f"{refused}{(nearest(name, known) or some_groups(known)) if is_missing else ''}")
        raise typer.Exit(exit_code_of(refused) if len(chosen) == 1 else EXIT_FAILED)


def _shown(names: list[str]) -> str:
    return ", ".join(name or NO_NAME for name in names)


def _obstacle(admin: Admin, name: str) -> KafkaError | None:
    """Returns the error that the deletion would get, so that the command does not ask for nothing."""
    from odradek.client.errors import GroupIdNotFound, GroupNotEmpty
    from odradek.lag.describe import group_description

    try:
        group = group_description(admin, name)
    except GroupIdNotFound as error:  # also for share and streams groups, which only the list names
        return None if any(row.group_id == name for row in admin.list_groups()) else error
    except KafkaError:
        return None  # the deletion says it, and a description may need another right
    return GroupNotEmpty(f"group {name} has live members: stop them first") if group.members else None


DELETE_OFFSETS_EPILOG = (
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
        missing = "missing argument 'GROUP' or option '--group': odradek groups list shows the groups"
        raise CommandError(missing if group is None else f"give one group: {name!r} or {group!r}")
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
