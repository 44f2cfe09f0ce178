"""The public keys of an identity provider: sets of JSON web keys (RFC 7517), from a file or by HTTP.

Only keys for RS, PS and ES algorithms are read. Needs the package cryptography.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from odradek.core.errors import ConfigError

RSA_BITS = range(2048, 16_385)
"""The sizes of RSA keys: RFC 7518 asks for 2,048 bits, and the time of a check grows with the square of the size."""
MOST_KEYS = 1000
_NAMED_FAULTS = 5
"""So many faults of keys are shown at most."""
CURVES: dict[str, type[ec.EllipticCurve]] = {"P-256": ec.SECP256R1, "P-384": ec.SECP384R1, "P-521": ec.SECP521R1}
_TEXT = re.compile(r"[A-Za-z0-9_-]*={0,2}", re.ASCII)


class KeySetError(ConfigError):
    """A set of keys cannot be read. The message says why and has no key."""


class WebKey(NamedTuple):
    """A public key. ``algorithm``: the only one that it is for; "" for all of its kind. ``kind``: RSA or a curve."""

    id: str | None
    algorithm: str
    kind: str
    key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey


class KeySet:
    """The keys by which tokens are checked. ``faults``: why further keys of the set are ignored."""

    def __init__(self, keys: Iterable[WebKey] = (), faults: Iterable[str] = ()) -> None:
        self.keys = tuple(keys)
        self.faults = tuple(faults)

    def candidates(self, key_id: str | None, algorithm: str, kind: str) -> list[WebKey]:
        """Returns the keys of a kind that an algorithm may use. Without an id, all of them."""
        return [
            one
            for one in self.keys
            if one.kind == kind and one.algorithm in ("", algorithm) and key_id in (None, one.id)
        ]


def unpacked(text: object) -> bytes:
    """Decodes base64url, with or without padding. Raises ValueError for other text."""
    if not isinstance(text, str) or not _TEXT.fullmatch(text):
        raise ValueError("it is not valid base64url")
    bare = text.rstrip("=")
    try:
        return base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except binascii.Error:
        raise ValueError("it is not valid base64url") from None


def read_object(data: bytes) -> dict[str, object]:
    """Reads a JSON object in which no name is twice. Raises ValueError."""
    try:
        content = json.loads(data, object_pairs_hook=_distinct)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name is there twice")
    return members


def read_key_set(data: bytes) -> KeySet:
    """Reads a set of keys. Keys of other kinds and uses are left out, and invalid ones (RFC 7517, section 5), which
    ``faults`` names. Raises KeySetError, also if no key is left."""
    try:
        rows = read_object(data).get("keys")
    except ValueError as error:
        raise KeySetError(f"it is not a set of JSON web keys: {_reason(error)}") from None
    if not isinstance(rows, list):
        raise KeySetError("it is not a set of JSON web keys: it has no list of keys")
    if len(rows) > MOST_KEYS:
        raise KeySetError(f"it has {len(rows):,} keys; the limit is {MOST_KEYS:,}")
    keys: list[WebKey] = []
    faults: list[str] = []
    for number, row in enumerate(rows, 1):
        try:
            key = _read_key(row)
        except (ValueError, KeyError) as error:
            key_id = row.get("kid") if isinstance(row, dict) else None
            shown = f" ({key_id[:100]!r})" if isinstance(key_id, str) else ""
            faults.append(f"key {number}{shown} is invalid: {_reason(error)}")
            continue
        if key is not None:
            keys.append(key)
    if not keys:
        raise KeySetError("; ".join(faults[:_NAMED_FAULTS]) or "it has no RSA or EC key for signatures")
    return KeySet(keys, faults[:_NAMED_FAULTS])


def _reason(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)[:200]


def _read_key(row: object) -> WebKey | None:
    """Returns the key, or None for a key that checks no signatures of these algorithms. Raises ValueError, KeyError."""
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    key_id, algorithm = row.get("kid"), row.get("alg", "")
    if not isinstance(key_id, str | None) or not isinstance(algorithm, str):
        raise ValueError("kid or alg is not a text")
    operations, curve = row.get("key_ops", ["verify"]), row.get("crv")
    if not isinstance(operations, list):
        raise ValueError("key_ops is not a list")
    if row.get("use", "sig") != "sig" or "verify" not in operations:
        return None
    if row.get("kty") == "RSA":
        modulus, exponent = _number(row["n"]), _number(row["e"])
        if modulus.bit_length() not in RSA_BITS or exponent.bit_length() > 32:
            raise ValueError(
                f"it has {modulus.bit_length():,} bits; expected {RSA_BITS.start:,} to {RSA_BITS.stop - 1:,}, and an "
                "exponent of at most 32 bits"
            )
        return WebKey(key_id, algorithm, "RSA", rsa.RSAPublicNumbers(exponent, modulus).public_key())
    if row.get("kty") == "EC" and isinstance(curve, str) and curve in CURVES:
        numbers = ec.EllipticCurvePublicNumbers(_number(row["x"]), _number(row["y"]), CURVES[curve]())
        return WebKey(key_id, algorithm, curve, numbers.public_key())
    return None


def _number(text: object) -> int:
    return int.from_bytes(unpacked(text), "big")
