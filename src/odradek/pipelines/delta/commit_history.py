"""The history of a Delta log whose path has ``?`` or ``#``: deltalake (1.6) finds no commit of it, and says nothing.

An empty history would mean that notes of micro-batches are gone, and the rows of the table would count in their place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from odradek.text.json_depth import parse_json

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log

    from odradek.pipelines.filesystems import Location

_UNREAD = re.compile("%(3F|23)")
_COMMIT = re.compile(r"(\d{20})\.json")


def with_history(log: Log, uri: str, table: Location) -> Log:
    """Returns the log, or one that reads its history from the files of its commits. ``uri``: its URI for deltalake."""
    found: Any = _ReadLog(log, table.child("_delta_log")) if _UNREAD.search(uri) else log
    return found  # it has all members of a log


class _ReadLog:
    """A log with the history of all commits, also of those after its version, as deltalake has them."""

    def __init__(self, log: Log, commits: Location) -> None:
        self._log = log
        self._commits = commits

    def history(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for name in sorted(self._commits.children(), reverse=True):
            if number := _COMMIT.fullmatch(name):
                lines = (self._commits.read_text(name) or "").splitlines()
                actions = [parse_json(line) for line in lines if line.strip()]
                infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
                found += [info | {"version": int(number[1])} for info in infos[:1]]
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)
