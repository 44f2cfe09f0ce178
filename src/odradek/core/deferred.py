"""A promise for one thread: a result that is not known yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

from odradek.core.errors import Refusal

T = TypeVar("T")
U = TypeVar("U")

_PENDING = object()


class Deferred(Generic[T]):
    """A value that is set once, now or later.

    ``resolve`` and ``then`` are called on the event loop's thread. Callbacks run in the order of the ``then`` calls:
    inside ``resolve``, or inside ``then`` if the value is already set. They must not raise.
    """

    __slots__ = ("_callbacks", "_value")

    def __init__(self) -> None:
        self._value: object = _PENDING
        self._callbacks: list[Callable[[T], None]] | None = None

    @classmethod
    def of(cls, value: T) -> Deferred[T]:
        """Returns a resolved promise."""
        ready: Deferred[T] = cls()
        ready._value = value
        return ready

    @property
    def resolved(self) -> bool:
        return self._value is not _PENDING

    @property
    def value(self) -> T:
        """Returns the value. Raises RuntimeError before ``resolve``."""
        if self._value is _PENDING:
            raise RuntimeError("not resolved yet")
        return cast(T, self._value)

    def resolve(self, value: T) -> None:
        """Sets the value and runs the callbacks. Raises RuntimeError on the second call."""
        if self._value is not _PENDING:
            raise RuntimeError("already resolved")
        self._value = value
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                callback(value)

    def then(self, callback: Callable[[T], None]) -> None:
        """Calls ``callback`` with the value, now or in ``resolve``."""
        if self._value is not _PENDING:
            callback(cast(T, self._value))
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    def map(self, function: Callable[[T], U]) -> Deferred[U]:
        """Returns the promise of ``function(value)``.

        If the function raises, the value is the exception, so that the promise is always resolved. The reader of the
        value handles the exception: the router replies with an error.
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
    """Returns an exception that the caller has caught, without the caller's frame in its traceback.

    A function that stores an exception it caught makes a cycle: exception, traceback, frame, exception. All objects of
    these frames, e.g. a request of megabytes, would stay until the next full garbage collection. A Refusal keeps no
    frame at all: its frames are never logged, and CPython links the frame of a function to the frame of its caller.
    """
    if isinstance(error, Refusal):
        return error.kept()
    traceback = error.__traceback__
    return error.with_traceback(None if traceback is None else traceback.tb_next)


def gather(promises: list[Deferred[T]]) -> Deferred[list[T]]:
    """Returns the promise of all values, in order."""
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
