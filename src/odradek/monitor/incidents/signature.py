"""Signatures of webhooks by the Standard Webhooks specification: HMAC-SHA256 over id, time and body. Pure.

Source: github.com/standard-webhooks/standard-webhooks, spec/standard-webhooks.md.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field

_PREFIX = "whsec_"


def secret_of(text: str) -> bytes:
    """Returns the key of a secret: the bytes behind ``whsec_`` in base64, or the text itself in UTF-8."""
    if text.startswith(_PREFIX):
        try:
            return base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except binascii.Error:
            pass
    return text.encode()


@dataclass(frozen=True, slots=True)
class Signer:
    """Makes the three headers of a signed request."""

    key: bytes = field(repr=False)

    def headers(self, message_id: str, time_s: int, body: bytes) -> dict[str, str]:
        """Returns the headers. ``message_id``: the same in each attempt. ``time_s``: of this attempt, since 1970."""
        signed = f"{message_id}.{time_s}.".encode() + body
        signature = base64.b64encode(hmac.digest(self.key, signed, hashlib.sha256)).decode()
        return {
            "webhook-id": message_id,
            "webhook-timestamp": str(time_s),
            "webhook-signature": f"v1,{signature}",
        }
