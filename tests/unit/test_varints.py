"""Unsigned varints: what is packed reads back, and nothing is read that is not there."""

from __future__ import annotations

import pytest

from odradek.core.varints import read_uvarint, uvarint


@pytest.mark.parametrize("value", [0, 1, 127, 128, 300, 16_383, 16_384, (1 << 28) - 1, (1 << 32) - 1])
def test_uvarints(value: int) -> None:
    packed = uvarint(value)
    assert sum((byte & 0x7F) << 7 * n for n, byte in enumerate(packed)) == value
    assert [byte >> 7 for byte in packed] == [1] * (len(packed) - 1) + [0]
    assert len(packed) == max(1, (value.bit_length() + 6) // 7)
    assert read_uvarint(b"." + packed + b".", 1) == (value, 1 + len(packed))
    with pytest.raises(IndexError):
        read_uvarint(packed[:-1], 0)


def test_six_bytes_are_none() -> None:
    with pytest.raises(ValueError, match="longer than 5 bytes"):
        read_uvarint(b"\x80" * 5 + b"\0", 0)
