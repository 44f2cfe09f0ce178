"""A promise for one thread: the broker's answer to "later"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from odradek.core.errors import Refusal

T = TypeVar("T")
U = TypeVar("U")

_PENDING = object()


class Deferred(Generic[T]):
    """A value that comes once, maybe later.

    Single-threaded: ``resolve`` and ``then`` are called on the event loop's thread. Callbacks run in the order
    they were added, at once inside ``resolve``, or inside ``then`` when the value is there already; they must not
    raise.
    """

    __slots__ = ("_callbacks", "_value")

    def __init__(self) -> None:
        self._value: object = _PENDING
        self._callbacks: list[Callable[[T], None]] | None = None

    @classmethod
    def of(cls, value: T) -> Deferred[T]:
        """A promise that is kept already."""
        ready: Deferred[T] = cls()
        ready._value = value
        return ready

    @property
    def resolved(self) -> bool:
        return self._value is not _PENDING

    @property
    def value(self) -> T:
        """What it was resolved with. Raises RuntimeError before that."""
        if self._value is _PENDING:
            raise RuntimeError("not resolved yet")
        return cast(T, self._value)

    def resolve(self, value: T) -> None:
        """Keeps the promise. Raises RuntimeError the second time."""
        if self._value is not _PENDING:
            raise RuntimeError("already resolved")
        self._value = value
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                callback(value)

    def then(self, callback: Callable[[T], None]) -> None:
        """Calls back with the value: now if it is there, else when it comes."""
        if self._value is not _PENDING:
            callback(cast(T, self._value))
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def map(self, function: Callable[[T], U]) -> Deferred[U]:
        """The promise of ``function(value)``; of the exception where that raises one, so that nobody waits for ever.

        What becomes of an exception is the business of whoever looks at the value: the router answers with an error.
        """
        mapped: Deferred[U] = Deferred()

        def keep(value: T) -> None:
            try:
                result = function(value)
            except Exception as error:
                result = cast(U, without_frame(error))
            mapped.resolve(result)

        self.then(keep)
        return mapped


def without_frame(error: Exception) -> Exception:
    """The exception that was caught in the calling function, without that function's frame in its traceback.

    A function that keeps an exception it caught makes a cycle: exception, traceback, frame, exception. All that the
    frames hold, such as a request of megabytes, would stay until the next full garbage collection. A Refusal
    is an answer, and nothing logs its frames, so it keeps none: CPython links the frame of a plain function to
    its caller's.
    """
    if isinstance(error, Refusal):
        return error.kept()
    traceback = error.__traceback__
    return error.with_traceback(None if traceback is None else traceback.tb_next)


def gather(promises: list[Deferred[T]]) -> Deferred[list[T]]:
    """The promise of all values, in order."""
    all_of: Deferred[list[T]] = Deferred()
    left = len(promises)
    values: list[T | None] = [None] * left
    if not left:
        all_of.resolve([])
        return all_of

    def keep(index: int, value: T) -> None:
        nonlocal left
        values[index] = value
        left -= 1
        if not left:
            all_of.resolve(cast(list[T], values))

    for index, promise in enumerate(promises):
        promise.then(lambda value, index=index: keep(index, value))  # type: ignore[misc]
    return all_of
