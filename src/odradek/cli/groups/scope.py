"""The groups that a command works on. Each group fails alone: one group's error does not hide the other groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from odradek.cli.options import given_names
from odradek.cli.terminal import EXIT_FAILED, CommandError, error_line, progress, warning_lines
from odradek.core.errors import KafkaError, OdradekError

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.client.model import GroupDescription, GroupListing

T = TypeVar("T")

Names = Annotated[list[str] | None, typer.Argument(metavar="[GROUP]...", help="The groups, as with --group.")]
Groups = Annotated[list[str] | None, typer.Option("--group", metavar="GROUP", help="The group. Repeatable.")]
AllGroups = Annotated[bool, typer.Option("--all-groups", help="All groups of the cluster.")]
_CONSUMERS = ("", "consumer")


def check_scope(
    groups: list[str] | None, all_groups: bool, names: list[str] | None = None, *, allow_empty: bool = False
) -> list[str]:
    """Returns the groups that are named, as arguments (``names``) or with --group.

    ``allow_empty``: an empty name is valid. Old clients commit without a name, and brokers keep such a group.
    Raises CommandError unless either groups, with valid names, or --all-groups are given."""
    named = [*(names or []), *(groups or [])]
    if named and all_groups:
        raise CommandError(f"give --group or --all-groups, not both (group {named[0]!r})")
    if not named and not all_groups:
        raise CommandError(
            "missing argument 'GROUP', '--group' or '--all-groups': odradek groups list shows the groups"
        )
    return given_names(named, "--group" if not names or "" in (groups or ()) else "GROUP", allow_empty=allow_empty)


def chosen_groups(admin: Admin, named: list[str], all_groups: bool) -> list[str]:
    """Returns the groups that a command works on."""
    return [row.group_id for row in admin.list_groups()] if all_groups else named


def consumer_groups(admin: Admin, named: list[str], all_groups: bool) -> tuple[list[str], list[OdradekError]]:
    """Returns the groups that a command for consumer groups works on, and the errors of named groups of other kinds.

    With --all-groups, other groups (of Connect's workers, share and streams groups) are left out, and named on stderr.
    A named group of another kind is an error: its consumers and offsets are not missing, it has none. The error is
    printed. If no other group is named, it is raised as CommandError.
    """
    if not all_groups:
        errors: list[OdradekError] = []
        chosen = []
        for name in named:
            if not (kind := _kind_of(admin, name)):
                chosen.append(name)
                continue
            error = CommandError(f"group {name} is not a consumer group ({kind}): it has no offsets of topics")
            if len(named) == 1:
                raise error
            errors.append(error)
            error_line(str(error))
        return chosen, errors
    listed = {row.group_id: row for row in admin.list_groups()}
    others = {name: kind for name, row in listed.items() if (kind := _other_kind(row))}
    if others:
        shown = ", ".join(f"{name} ({kind})" for name, kind in sorted(others.items()))
        warning_lines(f"Left out, because these are not consumer groups: {shown}")
    return [name for name in listed if name not in others], []


def _kind_of(admin: Admin, name: str) -> str:
    """Returns the kind of a group that is not one of consumers. Empty: one of consumers, or it is not known here."""
    from odradek.client.errors import GroupIdNotFound

    try:
        return _other_kind(admin.describe_groups([name])[name])
    except GroupIdNotFound:  # also for share and streams groups, which only the list names
        try:
            return next((_other_kind(row) for row in admin.list_groups() if row.group_id == name), "")
        except OdradekError:
            return ""
    except KafkaError:
        return ""


def _other_kind(row: GroupListing | GroupDescription) -> str:
    """Returns the kind of a group that is not one of consumers, or an empty text."""
    if row.type.lower() in ("share", "streams"):
        return row.type.lower()
    return "" if row.protocol_type in _CONSUMERS else row.protocol_type


def each_group(
    admin: Admin, names: list[str], ask: Callable[[str], T], label: str, failed: Sequence[OdradekError] = ()
) -> tuple[list[T], list[OdradekError]]:
    """Calls ``ask`` for each group. Returns the results, and the errors of groups, which are printed.

    The error of a single group is raised. ``failed``: the errors of other named groups, which are printed already."""
    from odradek.client.errors import GroupIdNotFound

    results: list[T] = []
    errors: list[OdradekError] = list(failed)
    with progress(label, len(names), "groups") as advance:
        for name in names:
            try:
                results.append(ask(name))
            except KafkaError as error:
                if len(names) == 1 and not failed:
                    raise
                errors.append(error)
                error_line(f"{error}{_meant(admin, name) if isinstance(error, GroupIdNotFound) else ''}")
            advance(1)
    return results, errors


def _meant(admin: Admin, name: str) -> str:
    from odradek.cli.suggestions import group_names, some_groups
    from odradek.text.similar_names import nearest

    return nearest(name, known := group_names(admin)) or some_groups(known)


def end_with(errors: list[OdradekError]) -> None:
    """Ends the command with the exit code of a failure if a group has failed."""
    if errors:
        raise typer.Exit(EXIT_FAILED)
