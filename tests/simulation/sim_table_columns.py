"""Schemas that change in a simulated world: drivers of several versions of a program, and what the table has to refuse.

Each version of the program has a schema; newer ones add a column or make a type wider. A driver has the newest one or
an older one, and most may change the table. A run that publishes must have every column of the table, with its type or
a wider one: otherwise values of records would be missing without a word. Others change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from sim_table_store import Broken, HeldBatch

from odradek.pipelines.commit.columns import Columns, RowColumns

VERSIONS: tuple[dict[str, str], ...] = (
    {"a": "integer"},
    {"a": "integer", "b": "string"},
    {"a": "long", "b": "string"},
    {"a": "long", "b": "string", "c": "float"},
    {"a": "long", "b": "string", "c": "double", "d": "byte"},
    {"a": "long", "b": "string", "c": "double", "d": "short", "e": "date"},
)
WIDE = {"byte": 1, "short": 2, "integer": 3, "long": 4, "float": 11, "double": 12}
"""A type may become one of a higher number of the same ten."""


class SimColumns:
    """The versions of the program in one world."""

    def __init__(self, seed: int) -> None:
        self.random = Random(f"{seed} columns")
        self.is_on = self.random.random() < 0.4
        self.newest = 0

    def event(self) -> None:
        """Sometimes there is a newer version."""
        if self.is_on and self.random.random() < 0.03:
            self.newest = min(self.newest + 1, len(VERSIONS) - 1)

    def of_driver(self, *, is_last: bool = False) -> RowColumns | None:
        """Returns the columns of a new driver's rows. ``is_last``: it is to finish."""
        if not self.is_on:
            return None
        version = self.newest
        if not is_last and self.random.random() < 0.4:
            version = self.random.randint(0, self.newest)
        return RowColumns(VERSIONS[version], may_change=is_last or self.random.random() < 0.8)


def check_published(batches: Sequence[HeldBatch], rows: RowColumns) -> None:
    """Raises Broken if a micro-batch with these columns may not be in a table with these other ones."""
    held = columns_of_table(batches)
    if held is None:
        return
    if lost := [name for name in held if name not in rows.types]:
        raise Broken(f"a run without the column {lost[0]} has published to a table that has it")
    if wrong := [name for name, kind in held.items() if not _is_same_or_wider(kind, rows.types[name])]:
        raise Broken(f"a run has published column {wrong[0]} as {rows.types[wrong[0]]}, and it is {held[wrong[0]]}")
    if not rows.may_change and dict(rows.types) != dict(held):
        raise Broken("a run that may not change columns has changed them")


def columns_of_table(batches: Sequence[HeldBatch]) -> Columns | None:
    """Returns the columns of the newest rows of a table."""
    found = [one.columns for one in batches if one.columns is not None]
    return found[-1] if found else None


def _is_same_or_wider(old: str, new: str) -> bool:
    before, after = WIDE.get(old), WIDE.get(new)
    if before is None or after is None:
        return old == new
    return before // 10 == after // 10 and before <= after


__all__ = ["SimColumns", "check_published", "columns_of_table"]
