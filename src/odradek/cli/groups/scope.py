"""The groups that a command works on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from odradek.cli.options import given_names
from odradek.cli.terminal import CommandError

if TYPE_CHECKING:
    from odradek.client.admin import Admin

Groups = Annotated[list[str] | None, typer.Option("--group", metavar="GROUP", help="The group. Repeatable.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups of the cluster.")]


def check_scope(groups: list[str] | None, all_groups: bool) -> None:
    """Raises CommandError unless either --group, with valid names, or --all-groups is given."""
    if bool(groups) == all_groups:
        raise CommandError("missing option '--group' or '--all-groups'" if not groups else "--group or --all-groups")
    given_names(groups or [], "--group")


def chosen_groups(admin: Admin, groups: list[str] | None, all_groups: bool) -> list[str]:
    """Returns the groups that a command works on."""
    return [row.group_id for row in admin.list_groups()] if all_groups else given_names(groups or [], "--group")
