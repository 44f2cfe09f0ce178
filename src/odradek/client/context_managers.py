"""Base classes of objects that a ``with`` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closeable(ABC):
    """Closes itself at the end of a ``with`` block, also after an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Releases all resources; the instance cannot be used afterwards."""


class Startable(Closeable):
    """Starts itself at the beginning of a ``with`` block. A start that fails releases all resources, too."""

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def start(self) -> Self:
        """Starts it, and returns when it serves requests."""


class AsyncCloseable(ABC):
    """Closes itself at the end of an ``async with`` block, also after an error."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    async def close(self) -> None:
        """Releases all resources; the instance cannot be used afterwards."""
