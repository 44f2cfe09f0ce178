"""The commits of a Delta log, read from its files, and its history where deltalake (1.6) has none.

For a path with ``?`` or ``#``, deltalake finds no commit, and says nothing. An empty history would mean that notes of
micro-batches are gone, and the rows of the table would count in their place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from odradek.text.json_depth import parse_json
from odradek.text.table_paths import DELTA_LOG

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log

    from odradek.pipelines.filesystems.location import Location

_UNREAD = re.compile("%(3F|23)")
_COMMIT = re.compile(r"\d{20}\.json")


def actions_at(commits: Location, version: int) -> list[dict[str, object]] | None:
    """Returns the actions of a commit; None if its file is missing. ``commits``: the folder of the log."""
    return _actions_of(commits.read_text(f"{version:020}.json"))


def info_of(actions: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the ``commitInfo`` among the actions of a commit; empty if there is none."""
    return next((dict(action["commitInfo"]) for action in actions if "commitInfo" in action), {})


def with_history(log: Log, uri: str, table: Location) -> Log:
    """Returns the log, or one that reads its history from the files of its commits. ``uri``: its URI for deltalake."""
    found: Any = _ReadLog(log, table.child(DELTA_LOG)) if _UNREAD.search(uri) else log
    return found  # it has all members of a log


class _ReadLog:
    """A log whose history is as deltalake makes it: it has all commits with a ``commitInfo``, also those after the
    version, and numbers them downwards from the version."""

    def __init__(self, log: Log, commits: Location) -> None:
        self._log = log
        self._commits = commits

    def history(self) -> list[dict[str, object]]:
        names = sorted((name for name in self._commits.children() if _COMMIT.fullmatch(name)), reverse=True)
        infos = [info for name in names if (info := info_of(_actions_of(self._commits.read_text(name)) or []))]
        return [info | {"version": self._log.version() - place} for place, info in enumerate(infos)]

    def __getattr__(self, name: str) -> object:
        return getattr(self._log, name)


def _actions_of(text: str | None) -> list[dict[str, object]] | None:
    return None if text is None else [parse_json(line) for line in text.splitlines() if line.strip()]
