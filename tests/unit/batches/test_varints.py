"""Varints: encoded numbers are read back, reads never pass the end of the data, and no other module has functions for
varints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.batches.kernels import varint_kernels as kernels
from odradek.core.varints import OverlongVarint, read_uvarint, read_varint, uvarint, varint

SOURCE = Path(__file__).resolve().parents[3] / "src"
VARINT_MODULES = {"odradek/core/varints.py", "odradek/batches/kernels/varint_kernels.py"}
LONG = st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16_383, 16_384, (1 << 28) - 1, (1 << 32) - 1])
def test_uvarints_are_read_back(value: int) -> None:
    packed = uvarint(value)
    assert sum((byte & 0x7F) << 7 * n for n, byte in enumerate(packed)) == value
    assert [byte >> 7 for byte in packed] == [1] * (len(packed) - 1) + [0]
    assert len(packed) == max(1, (value.bit_length() + 6) // 7)
    assert read_uvarint(b"." + packed + b".", 1) == (value, 1 + len(packed))
    with pytest.raises(IndexError):
        read_uvarint(packed[:-1], 0)


def test_a_varint_of_six_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than 5 bytes"):
        read_uvarint(b"\x80" * 5 + b"\0", 0)
    assert read_uvarint(b"\x80" * 5 + b"\1", 0, 10) == (1 << 35, 6)
    with pytest.raises(OverlongVarint, match="longer than 10 bytes"):
        read_uvarint(b"\x80" * 10 + b"\0", 0, 10)


@given(LONG)
def test_zigzag_varints_are_read_back(value: int) -> None:
    packed = varint(value)
    assert read_varint(b"." + packed + b".", 1, 1 + len(packed), 10) == (value, 1 + len(packed))
    for end in range(1, 1 + len(packed)):
        with pytest.raises(IndexError):
            read_varint(b"." + packed, 1, end, 10)
    if len(packed) > 5:
        with pytest.raises(OverlongVarint, match="longer than 5 bytes"):
            read_varint(packed, 0, len(packed))


@given(LONG)
def test_kernels_write_the_same_bytes(value: int) -> None:
    packed = varint(value)
    out = np.zeros(12, np.uint8)
    assert kernels.write_varint(out, 1, value) == 1 + len(packed)
    assert out.tobytes() == (b"\0" + packed).ljust(12, b"\0")
    assert kernels.varint_size(value) == len(packed)


@given(st.binary(min_size=1, max_size=12) | st.lists(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]), min_size=1).map(bytes))
def test_kernels_read_the_same_numbers(data: bytes) -> None:
    """Python's readers raise an error where the kernels return position -1."""
    array = np.frombuffer(data, np.uint8)
    for longest in (5, 10):
        try:
            expected = read_varint(data, 0, len(data), longest)
        except (IndexError, OverlongVarint):
            expected = (0, -1)
        assert kernels.read_varint(array, 0, len(data), longest) == expected
    try:
        expected = read_uvarint(data, 0)
    except (IndexError, OverlongVarint):
        expected = (0, -1)
    assert kernels.read_uvarint(array, 0, len(data)) == expected


def functions_of_varints(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "varint" in node.name.lower():
            yield node.name


def test_there_is_one_set_of_functions_in_python_and_one_for_kernels() -> None:
    """Code within a loop that reads small numbers inline, for speed, is not a function."""
    found = {
        path.relative_to(SOURCE).as_posix(): names
        for path in sorted(SOURCE.rglob("*.py"))
        if re.search(r"def \w*varint", text := path.read_text(), re.IGNORECASE)
        and (names := list(functions_of_varints(text)))
    }
    assert found.keys() == VARINT_MODULES, found
    assert list(functions_of_varints("class A:\n    def _put_varint(self): ...")) == ["_put_varint"]
