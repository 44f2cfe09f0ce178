"""``odradek groups delete``: deletes groups without live members, with all their offsets."""

from __future__ import annotations

import typer

from odradek.cli.confirmation import Yes, confirm
from odradek.cli.groups.scope import AllGroups, Groups, check_scope, chosen_groups
from odradek.cli.options import TIMEOUT_MS, AsJson, Bootstrap, CommandConfig, Timeout, connect
from odradek.cli.terminal import EXIT_FAILED, error_line, note, print_json, progress

EPILOG = (
    "Examples:\n\n\b\n"
    "  odradek groups delete --group old-job -b 127.0.0.1:9092\n"
    "  odradek groups delete --group a --group b --yes -b 127.0.0.1:9092"
)


def delete(
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
    from odradek.core.errors import KafkaError

    check_scope(group, all_groups)
    failed: dict[str, KafkaError] = {}
    with connect(bootstrap, timeout_ms, command_config) as admin:
        names = chosen_groups(admin, group, all_groups)
        if not names or not confirm(f"Delete {', '.join(names)} with all offsets?", yes):
            return
        with progress("Deleting", len(names), "groups") as advance:
            for name in names:
                try:
                    admin.delete_groups([name])
                except KafkaError as error:
                    failed[name] = error
                advance(1)
    done = [name for name in names if name not in failed]
    if as_json:
        print_json({"deleted": done, "failed": {k: str(v) for k, v in failed.items()}}, indent=2)
    elif done:
        note(f"Deleted {', '.join(done)}.")
    if len(failed) == 1 and len(names) == 1:
        raise failed[names[0]]
    for refused in failed.values():
        error_line(str(refused))
    if failed:
        raise typer.Exit(EXIT_FAILED)
