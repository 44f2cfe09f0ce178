"""The attempts to deliver an announcement. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 300_000
_REPEATED = (408, 425, 429)
"""Codes of a receiver that may accept the same request later; so do all from 500 on."""


class DeliveryFate(StrEnum):
    """What becomes of a delivery after an attempt."""

    DELIVERED = "delivered"
    REPEATED = "repeated"
    GIVEN_UP = "given up"


class HookAnswer(NamedTuple):
    """The answer to an attempt. ``code``: that of HTTP, or 0 without an answer; then ``reason`` says why.

    ``retry_after_ms``: the pause that the receiver asks for; 0 if for none."""

    code: int
    reason: str = ""
    retry_after_ms: int = 0


class HookAttempt(NamedTuple):
    """The result of an attempt: its fate, and the pause before the next attempt in ms."""

    fate: DeliveryFate
    pause_ms: int = 0


def attempt_after(answer: HookAnswer, attempts: int, most_attempts: int) -> HookAttempt:
    """Returns what follows an answer. ``attempts``: how many were made, with this one."""
    if 200 <= answer.code < 300:
        return HookAttempt(DeliveryFate.DELIVERED)
    is_lasting = 0 < answer.code < 500 and answer.code not in _REPEATED
    if is_lasting or attempts >= most_attempts:
        return HookAttempt(DeliveryFate.GIVEN_UP)
    pause = min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS << min(attempts - 1, 20))
    return HookAttempt(DeliveryFate.REPEATED, max(pause, min(answer.retry_after_ms, LONGEST_PAUSE_MS)))


def retry_after_ms(headers: Mapping[str, str]) -> int:
    """Returns the header Retry-After in ms; 0 without one. A date there is ignored: clocks differ."""
    text = headers.get("retry-after", "").strip()
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 7 else 0
