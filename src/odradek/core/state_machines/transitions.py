"""Tables of transitions: a state machine that has one enters no state that the table does not have."""

from __future__ import annotations

from collections.abc import Mapping, Set
from enum import Enum
from typing import TypeVar

from odradek.core.effects import IllegalTransition

S = TypeVar("S", bound=Enum)


def checked(table: Mapping[S, Set[S]], name: str, before: S, after: S) -> S:
    """Returns ``after``. Raises IllegalTransition, with the name of the machine, if the table does not have it."""
    if after not in table[before]:
        raise IllegalTransition(f"{name}: {before.name.lower()} → {after.name.lower()}")
    return after
