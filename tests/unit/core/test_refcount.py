"""The check that an object has no other references, with this Python's reference counts."""

from __future__ import annotations

import numpy as np

from odradek.core.refcount import ALONE, has_only_references


def test_a_view_counts_as_a_reference_to_a_local_object() -> None:
    assert ALONE >= 0, "this Python has exact reference counts"
    thing = bytearray(10)
    assert has_only_references(thing, 1)
    view = memoryview(thing)[2:4].toreadonly()
    assert not has_only_references(thing, 1)
    del view
    assert has_only_references(thing, 1)


def test_a_view_counts_as_a_reference_to_a_list_element() -> None:
    things = [bytearray(10) for _ in range(3)]
    view = memoryview(things[1])
    free = [has_only_references(thing, 2) for thing in things]
    assert free == [True, False, True]
    del view


def test_a_column_counts_as_a_reference_to_its_array() -> None:
    block = np.empty(100, np.uint8)
    column = block[10:20].view(np.int16)
    part = column[1:]
    del column
    assert not has_only_references(block, 1)
    del part
    assert has_only_references(block, 1)
