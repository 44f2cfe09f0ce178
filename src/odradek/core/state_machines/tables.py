"""The tables of a state machine: the handlers of its requests by type, and the transitions that its states allow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from enum import Enum
from typing import Any, Protocol, TypeVar

from odradek.core.effects import IllegalTransition, ResultOrSteps
from odradek.core.errors import ErrorCode

R = TypeVar("R")
S = TypeVar("S", bound=Enum)
Q = TypeVar("Q")
Q_contra = TypeVar("Q_contra", contravariant=True)
Reply_co = TypeVar("Reply_co", covariant=True)


class RequestKind(Protocol[Q_contra, Reply_co]):
    """A class of requests (``effects.Request``) as an object: ``kind.error_reply`` takes the request as an argument.

    So a type checker reads the type of the request and that of its replies from the class.
    """

    def error_reply(self, request: Q_contra, error: ErrorCode, /) -> Reply_co: ...


class RequestTable:
    """Each handler takes the time (ms) and a request of the type under which it was added. Its result has the reply of
    this type of request: mypy refuses a handler with another reply.

    ``by_type`` is the table itself: ``by_type[type(request)](now_ms, request)``."""

    def __init__(self) -> None:
        self.by_type: dict[object, Callable[[int, Any], ResultOrSteps[Any]]] = {}

    def add(self, kind: RequestKind[Q, R], handle: Callable[[int, Q], ResultOrSteps[R]]) -> None:
        self.by_type[kind] = handle


def checked(table: Mapping[S, Set[S]], name: str, before: S, after: S) -> S:
    """Returns ``after``. Raises IllegalTransition, with the name of the machine, if the table does not have it."""
    if after not in table[before]:
        raise IllegalTransition(f"{name}: {before.name.lower()} → {after.name.lower()}")
    return after
