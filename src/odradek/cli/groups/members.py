"""``odradek groups members``: the live members of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.groups.scope import AllGroups, Groups, Names, check_scope, consumer_groups, each_group, end_with
from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, connect, table_or_blocks
from odradek.cli.terminal import note, note_table, print_json, warning_lines

if TYPE_CHECKING:
    from odradek.client.model import GroupDescription

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups members flight-lake -b 127.0.0.1:9092\n"
    "  odradek groups members --group flight-lake --verbose -b 127.0.0.1:9092"
)


def members(
    names: Names = None,
    *,
    bootstrap: Bootstrap,
    group: Groups = None,
    all_groups: AllGroups = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the partitions of each member.")] = False,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    timeout_ms: Timeout = TIMEOUT_MS,
) -> None:
    """Show the live members of groups and how many partitions each member reads."""
    named = check_scope(group, all_groups, names)
    with connect(bootstrap, timeout_ms, command_config) as admin:
        chosen, failed = consumer_groups(admin, named, all_groups)
        groups, errors = each_group(
            admin, chosen, lambda name: admin.describe_groups([name])[name], "Describing", failed
        )
    if as_json:
        print_json([_members_json(one) for one in groups], indent=2)
    else:
        for one in groups:
            _print_members(one, verbose)
    end_with(errors)


def _members_json(one: GroupDescription) -> dict[str, object]:
    rows = [
        {
            "member_id": m.member_id, "instance_id": m.instance_id, "host": m.host, "client_id": m.client_id,
            "assignment": [str(tp) for tp in sorted(m.assignment)],
        }
        for m in one.members
    ]  # fmt: skip
    return {"group": one.group_id, "state": one.state, "members": rows}


def _print_members(one: GroupDescription, verbose: bool) -> None:
    from odradek.lag import table as lag

    notice = lag.notice(one.group_id, one.state)
    if notice is not None:
        warning_lines("", notice)
    if not one.members:
        return
    static = any(m.instance_id for m in one.members)
    head = ["GROUP", "CONSUMER-ID", *(["GROUP-INSTANCE-ID"] if static else []), "HOST", "CLIENT-ID", "#PARTITIONS"]
    rows = []
    for m in sorted(one.members, key=lambda m: (-len(m.assignment), m.member_id)):
        middle = [m.instance_id or "-"] if static else []
        rows.append((one.group_id, m.member_id, *middle, m.host, m.client_id, str(len(m.assignment))))
    note_table(table_or_blocks(tuple(head), rows), "")
    if verbose:
        for m in one.members:
            note(f"{m.member_id}: {', '.join(map(str, sorted(m.assignment))) or '-'}")
