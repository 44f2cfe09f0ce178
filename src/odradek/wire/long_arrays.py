"""Arrays of a long request that are read from its bytes whenever they are used.

The objects of 250,000 elements take up to 130 MB, ten times as much as their bytes. A ``LongArray`` behaves like the
tuple of these objects. It keeps the bytes, the position of each 32nd element, and the elements that are long
themselves. Each use of an element reads it again, so a handler passes over a long array once or twice, in steps, and
keeps only what it needs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import overload

BLOCK = 32
"""The number of elements that are read together."""

ReadElement = Callable[[bytes | memoryview, int], tuple[object, int]]
"""Returns an element and the position after it."""


class LongArray(Sequence[object]):
    """The elements of an array, in order. They were checked and read once, so no later read fails."""

    __slots__ = ("_count", "_data", "_read", "_starts", "_wide")

    def __init__(self, data: bytes | memoryview, read: ReadElement) -> None:
        self._data = data
        self._read = read
        self._count = 0
        self._starts = array("Q")
        self._wide: dict[int, tuple[object, int]] = {}

    def add(self, at: int) -> None:
        """Appends the element at this position."""
        if not self._count % BLOCK:
            self._starts.append(at)
        self._count += 1

    def add_object(self, at: int, element: object, end: int) -> None:
        """Appends a long element, which stays in memory, and the position after it."""
        self._wide[self._count] = (element, end)
        self.add(at)

    def block(self, number: int) -> list[object]:
        """Reads the elements from index ``number * BLOCK`` on, at most ``BLOCK``."""
        at, data, read, wide = self._starts[number], self._data, self._read, self._wide
        first = number * BLOCK
        last = min(first + BLOCK, self._count)
        elements: list[object] = []
        for index in range(first, last):
            element, at = wide[index] if index in wide else read(data, at)
            elements.append(element)
        return elements

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[object]:
        for number in range(len(self._starts)):
            yield from self.block(number)

    def __reversed__(self) -> Iterator[object]:
        for number in reversed(range(len(self._starts))):
            yield from reversed(self.block(number))

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[object, ...]: ...
    def __getitem__(self, index: int | slice) -> object:
        if isinstance(index, int):
            number = range(self._count)[index]
            return self.block(number // BLOCK)[number % BLOCK]
        wanted = range(self._count)[index]
        if wanted.step != 1:
            return tuple(self[number] for number in wanted)
        elements: list[object] = []
        begin = wanted.start // BLOCK
        for number in range(begin, (wanted.stop + BLOCK - 1) // BLOCK if wanted else begin):
            elements += self.block(number)
        return tuple(elements[wanted.start - begin * BLOCK : wanted.stop - begin * BLOCK])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LongArray | tuple):
            return NotImplemented
        return len(self) == len(other) and all(mine == others for mine, others in zip(self, other, strict=True))

    def __hash__(self) -> int:
        """The hash of a part: a hash of all elements would read them in one step."""
        return hash((self._count, *self.block(0))) if self._count else hash(())
