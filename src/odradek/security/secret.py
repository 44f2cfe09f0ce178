"""Passwords, keys and tokens, which no log line, error or ``repr`` shows."""

from __future__ import annotations

import hmac


class Secret:
    """A secret text. It prints as ``[hidden]``, like a password of Kafka's settings. It may be pickled."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Returns the text. Only code that sends it or derives a key from it calls this."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "[hidden]"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    def __getstate__(self) -> str:
        return self._text

    def __setstate__(self, state: str) -> None:
        self._text = state
