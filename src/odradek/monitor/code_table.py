"""Numbers for keys: a slot for each 64-bit code, and a number for each name. Both are used again after a removal."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from odradek.batches.kernels.kernel_arrays import Array
from odradek.history.windows.commit_windows import writable
from odradek.monitor import code_kernels as kernels

_FIRST_PLACES = 1 << 10
_SLOT_STEP = 1 << 16


class CodeTable:
    """Slots 0, 1, 2, … for codes of 64 bits: about 20 bytes for each code. A removed code's slot goes to a new code."""

    def __init__(self) -> None:
        self._slots = np.full(_FIRST_PLACES, kernels.EMPTY, np.int32)
        self._code_of = np.zeros(0, np.int64)
        self._free = np.zeros(0, np.int32)
        self._free_count = self._size = 0

    def __len__(self) -> int:
        """Returns the number of codes."""
        return self._size - self._free_count

    @property
    def slot_count(self) -> int:
        """Returns the number of slots ever used at the same time."""
        return self._size

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (self._slots, self._code_of, self._free))

    def codes(self, slots: Array) -> Array:
        """Returns the codes of used slots."""
        codes: Array = self._code_of[slots]
        return codes

    def used(self) -> Array:
        """Returns all slots with a code, ascending."""
        is_used = np.ones(self._size, np.bool_)
        is_used[self._free[: self._free_count]] = False
        return np.flatnonzero(is_used)

    def find(self, codes: Array) -> Array:
        """Returns the slot of each code; -1 without one."""
        slots = np.empty(len(codes), np.int32)
        kernels.find(self._code_of, self._slots, writable(codes, np.int64), slots)
        return slots

    def find_or_add(self, codes: Array) -> Array:
        """Returns the slot of each code. New codes get slots."""
        slots = np.empty(len(codes), np.int32)
        self._make_room(len(codes))
        self._free_count, self._size = kernels.find_or_add(
            self._code_of, self._slots, writable(codes, np.int64), slots, self._free, self._free_count, self._size
        )
        return slots

    def remove(self, slots: Array) -> None:
        """Removes the codes of these slots, which must be used and different."""
        count = len(slots)
        kernels.remove(self._code_of, self._slots, self._code_of[slots])
        if self._free_count + count > len(self._free):
            self._free = np.append(self._free[: self._free_count], np.zeros(max(count, self._free_count), np.int32))
        self._free[self._free_count : self._free_count + count] = slots
        self._free_count += count

    def _make_room(self, more: int) -> None:
        if self._size + more > len(self._code_of):
            step = min(max(more, self._size // 2, 256), max(more, _SLOT_STEP))
            self._code_of.resize(self._size + step, refcheck=False)
        places = len(self._slots)
        while len(self) + more > places * 3 // 4:
            places *= 2
        if places > len(self._slots):
            self._slots = np.full(places, kernels.EMPTY, np.int32)
            kernels.place(self._code_of, self._slots, self.used().astype(np.int32))


class NameCodes:
    """Numbers for names, each with the number of its users. A name without users loses its number."""

    def __init__(self) -> None:
        self._code_of: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        self._users = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._code_of)

    def __contains__(self, name: str) -> bool:
        return name in self._code_of

    @property
    def code_count(self) -> int:
        """Returns the number of codes ever used at the same time."""
        return len(self._names)

    def name(self, code: int) -> str:
        return self._names[code]

    def code(self, name: str) -> int | None:
        return self._code_of.get(name)

    def items(self) -> Iterable[tuple[str, int]]:
        return self._code_of.items()

    def codes(self, names: Iterable[str]) -> Array:
        """Returns the codes of names. New names get codes and have no users; ``drop_unused`` ends such codes."""
        codes = []
        for name in names:
            code = self._code_of.get(name)
            if code is None:
                code = self._free.pop() if self._free else len(self._names)
                if code == len(self._names):
                    self._names.append(name)
                self._names[code], self._code_of[name] = name, code
            codes.append(code)
        if len(self._names) > len(self._users):
            self._users = np.append(self._users, np.zeros(max(16, len(self._names)), np.int64))
        return np.array(codes, np.int64)

    def add_users(self, codes: Array, change: int) -> None:
        """Adds ``change`` users to each of the codes. A code may occur more than once."""
        np.add.at(self._users, codes, change)

    def drop_unused(self, codes: Iterable[int]) -> list[int]:
        """Ends those of the codes that have no users, and returns them."""
        gone = []
        for code in codes:
            name = self._names[code]
            if self._users[code] == 0 and self._code_of.get(name) == code:
                del self._code_of[name]
                self._names[code] = ""
                self._free.append(code)
                gone.append(code)
        return gone
