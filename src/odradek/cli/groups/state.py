"""``odradek groups state``: the state of groups, their coordinator and assignor."""

from __future__ import annotations

from odradek.cli.groups.scope import AllGroups, Groups, Names, check_scope, chosen_groups, each_group, end_with
from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, connect, table_or_blocks
from odradek.cli.terminal import note_table, print_json

EPILOG = (
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
