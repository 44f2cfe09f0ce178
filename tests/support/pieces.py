"""An input that arrives in pieces."""

from __future__ import annotations

import io


class Pieces(io.BytesIO):
    """A pipe that returns at most ``most`` bytes per read."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self._most = most

    def read1(self, size: int | None = -1, /) -> bytes:
        return super().read1(min(size or 0, self._most))
