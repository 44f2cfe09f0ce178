"""The principal in a forwarded request: Kafka's DefaultPrincipalData, version 0, after its version."""

from __future__ import annotations

from odradek.core.ids import MAX_STRING_BYTES
from odradek.core.varints import read_uvarint, uvarint
from odradek.security.principal import Principal, TokenPrincipal

_VERSION = b"\0\0"
_MOST_TAGS = 100


def pack_principal(principal: Principal) -> bytes:
    """Returns the bytes of a principal."""
    texts = b"".join(uvarint(len(packed) + 1) + packed for packed in (principal.kind.encode(), principal.name.encode()))
    return _VERSION + texts + bytes([isinstance(principal, TokenPrincipal)]) + b"\0"


def read_principal(data: bytes) -> Principal:
    """Returns the principal of these bytes. Raises ValueError for bytes that are none."""
    if data[:2] != _VERSION:
        raise ValueError("a principal of an unknown version")
    try:
        kind, at = _read_text(data, 2)
        name, at = _read_text(data, at)
        is_token = data[at]
        count, at = read_uvarint(data, at + 1)
        if count > _MOST_TAGS:
            raise ValueError("a principal with too many tagged fields")
        for _ in range(count):
            _, at = read_uvarint(data, at)
            size, at = read_uvarint(data, at)
            at += size
    except IndexError as error:
        raise ValueError("a principal that is cut") from error
    if at != len(data) or is_token > 1:
        raise ValueError("a malformed principal")
    return (TokenPrincipal if is_token else Principal)(kind, name)


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    size, at = read_uvarint(data, at)
    end = at + size - 1
    if not 0 < size <= MAX_STRING_BYTES + 1 or end > len(data):
        raise ValueError("a principal with a malformed text")
    return data[at:end].decode(), end
