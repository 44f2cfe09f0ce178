"""Names of topics and groups that a person may have meant: an error about an unknown name suggests the nearest one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from odradek.cli.terminal import CommandError
from odradek.core.errors import OdradekError

if TYPE_CHECKING:
    from odradek.client.admin import Admin

LIST_GROUPS = "odradek groups list shows the groups"
_LISTED = 3


@contextmanager
def with_suggestions(admin: Admin) -> Iterator[None]:
    """Adds similar names of the cluster to an error about a topic or group that does not exist.

    Raises CommandError in its place, with the exit code of wrong input.
    """
    from odradek.client.errors import GroupIdNotFound, UnknownTopic

    try:
        yield
    except UnknownTopic as error:
        if not (names := getattr(error, "names", ())):
            raise
        raise CommandError(f"{error}{_nearest_topics(admin, names)}") from error
    except GroupIdNotFound as error:
        if not (group := getattr(error, "group", None)):
            raise
        from odradek.text.similar_names import nearest

        raise CommandError(f"{error}{nearest(group, known := group_names(admin)) or some_groups(known)}") from error


def group_names(admin: Admin) -> list[str]:
    """Returns the names of the cluster's groups; none if it does not list them."""
    try:
        return [row.group_id for row in admin.list_groups()]
    except OdradekError:
        return []


def some_groups(known: list[str]) -> str:
    """Returns the groups of a small cluster, or how to list them: the end of an error about an unknown group."""
    if not known:
        return ": the cluster has no groups"
    return f": the cluster has {', '.join(sorted(known))}" if len(known) <= _LISTED else f": {LIST_GROUPS}"


def _nearest_topics(admin: Admin, names: Iterable[str]) -> str:
    try:
        known = list(admin.describe_topics())
    except OdradekError:
        return ""
    from odradek.text.similar_names import nearest

    suggestions = [nearest(name, known) for name in names]
    return next((text for text in suggestions if text), "") or _some(known)


def _some(known: list[str]) -> str:
    """Returns the topics of a small cluster: the wrong cluster is a frequent reason for an unknown topic."""
    own = sorted(name for name in known if not name.startswith("__"))
    if not own:
        return ": the cluster has no topics yet"
    return f": the cluster has {', '.join(own)}" if len(own) <= _LISTED else ": odradek topics list shows the topics"
