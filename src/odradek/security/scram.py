"""SCRAM (RFC 5802, 7677) as Kafka uses it: without channel binding, with UTF-8 names and passwords as they are.

State machines without a clock and without randomness: the caller passes nonces. Kafka's extension ``tokenauth=true``
logs in with a delegation token: the name is the token's id and the password is its HMAC.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import NamedTuple

from odradek.core.access.credential import Credential
from odradek.security.protocols import HASHES
from odradek.security.secret import Secret

LEAST_ITERATIONS = 4096
MOST_ITERATIONS = 1_000_000
"""A client refuses a server that asks for more: each iteration costs its CPU time, before the server has proved that it
knows the password."""
MOST_BYTES = 65_536
NONCE_BYTES, SALT_BYTES = 24, 32
"""The random bytes of nonces and salts that callers make."""
_GS2 = "n,,"
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_EXTENSION = re.compile(r"[A-Za-z]+=[^,\0]+")


class ScramError(Exception):
    """The other side broke the protocol, or does not know the password. The text names neither name nor password."""


def salted_password(mechanism: str, password: Secret, salt: bytes, iterations: int) -> bytes:
    """Returns the salted password. Takes about 1 ms for 4,096 iterations."""
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.reveal().encode(), salt, iterations)


def keys_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> Credential:
    """Returns the keys of a salted password."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    return Credential(
        salt, hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name), iterations
    )


def escaped(name: str) -> str:
    """Returns a name as an attribute of a message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(text: str) -> str:
    """Raises ScramError for an escape that is not one of the two."""
    parts = text.split("=")
    if any(part[:2] not in ("2C", "3D") for part in parts[1:]):
        raise ScramError("the name has an invalid escape")
    return parts[0] + "".join({"2C": ",", "3D": "="}[part[:2]] + part[2:] for part in parts[1:])


class ScramClient:
    """The client's side of one login: ``first()``, then ``final(server_first)``, then ``verify(server_final)``."""

    def __init__(
        self, mechanism: str, user: str, password: Secret, nonce: str, *, extensions: Mapping[str, str] | None = None
    ) -> None:
        self._mechanism = mechanism
        self._user = user
        self._password = password
        self._nonce = nonce
        self._extensions = extensions or {}
        self._server_signature = b""

    def first(self) -> bytes:
        """Returns the client's first message."""
        return (_GS2 + self._first_bare()).encode()

    def _first_bare(self) -> str:
        extensions = "".join(f",{name}={value}" for name, value in self._extensions.items())
        return f"n={escaped(self._user)},r={self._nonce}{extensions}"

    def final(self, server_first: bytes) -> bytes:
        """Returns the client's final message, which proves that it knows the password. Raises ScramError."""
        fields = _fields(server_first, "rsi")
        nonce, iterations = fields["r"], _number(fields["i"])
        salt = _decoded(fields["s"], "salt")
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not _NONCE.fullmatch(nonce):
            raise ScramError("the server's nonce does not continue the client's nonce")
        if not LEAST_ITERATIONS <= iterations <= MOST_ITERATIONS:
            raise ScramError(
                f"the server asks for {iterations:,} iterations, not for {LEAST_ITERATIONS:,} to {MOST_ITERATIONS:,}"
            )
        name = HASHES[self._mechanism]
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        keys = keys_of(self._mechanism, salted, salt, iterations)
        without_proof = f"c={_encoded(_GS2.encode())},r={nonce}"
        signed = signed_text(self._first_bare(), server_first.decode(), without_proof)
        client_key = hmac.digest(salted, b"Client Key", name)
        proof = xor(client_key, hmac.digest(keys.stored_key, signed, name))
        self._server_signature = hmac.digest(keys.server_key, signed, name)
        return f"{without_proof},p={_encoded(proof)}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raises ScramError if the server refused the login, or has not proved that it knows the password."""
        text = _text(server_final)
        if text.startswith("e="):
            raise ScramError(f"the server refused the login: {text[2:].partition(',')[0][:200]!r}")
        fields = _fields(server_final, "v")
        signature = _decoded(fields["v"], "signature")
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise ScramError("the server's signature is wrong: it does not know the password")


def signed_text(client_first_bare: str, server_first: str, client_final_without_proof: str) -> bytes:
    """Returns what both sides sign."""
    return f"{client_first_bare},{server_first},{client_final_without_proof}".encode()


def xor(one: bytes, other: bytes) -> bytes:
    """Both have the same length."""
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _text(message: bytes) -> str:
    if len(message) > MOST_BYTES:
        raise ScramError(f"a message has {len(message):,} bytes; the limit is {MOST_BYTES:,}")
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise ScramError("a message is not valid UTF-8") from error


def _fields(message: bytes, names: str) -> dict[str, str]:
    """Reads the attributes ``names`` in this order; further ones may follow. Raises ScramError."""
    parts = _text(message).split(",")
    fields: dict[str, str] = {}
    for name, part in zip(names, parts, strict=False):
        if part[:2] != f"{name}=":
            raise ScramError(f"a message lacks the attribute {name!r}")
        fields[name] = part[2:]
    if len(fields) != len(names):
        raise ScramError(f"a message lacks the attribute {names[len(fields)]!r}")
    return fields


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise ScramError("the number of iterations is not a number")
    return int(text)


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decoded(text: str, what: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ScramError(f"the {what} is not valid base64") from error
    if not data:
        raise ScramError(f"the {what} is empty")
    return data


class ClientFirst(NamedTuple):
    """What a client's first message says."""

    user: str
    nonce: str
    is_token: bool
    bare: str
    header: str = _GS2
    """The part before ``bare``, which the client repeats in its final message."""
    authorization: str = ""
    """The authorization id; "" if the message has none."""


def read_client_first(message: bytes) -> ClientFirst:
    """Reads a client's first message. Raises ScramError."""
    text = _text(message)
    flag, name, bare = [*text.split(",", 2), "", ""][:3]
    if flag != "n":
        raise ScramError("channel binding is not supported" if flag[:1] in ("p", "y") else "the message is malformed")
    if name and not name.startswith("a="):
        raise ScramError("the message is malformed")
    fields = _fields(bare.encode(), "nr")
    parts = bare.split(",")[2:]
    if not fields["n"] or not fields["r"]:
        raise ScramError("the name or the nonce is empty")
    if not _NONCE.fullmatch(fields["r"]):
        raise ScramError("the nonce has characters that are not printable ASCII")
    if not all(map(_EXTENSION.fullmatch, parts)):
        raise ScramError("an extension is not of the form name=value")
    extensions = dict(part.partition("=")[::2] for part in parts)
    is_token = extensions.get("tokenauth", "").lower() == "true"
    return ClientFirst(unescaped(fields["n"]), fields["r"], is_token, bare, f"n,{name},", unescaped(name[2:]))


class ScramServer:
    """The server's side of one login, after ``read_client_first``: ``first()``, then ``final(client_final)``.

    For an unknown user the caller passes made-up keys, so that its answers look like those for a known one.
    """

    def __init__(self, mechanism: str, client: ClientFirst, keys: Credential, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._client = client
        self._keys = keys
        self._nonce = client.nonce + nonce

    def first(self) -> bytes:
        """Returns the server's first message."""
        return f"r={self._nonce},s={_encoded(self._keys.salt)},i={self._keys.iterations}".encode()

    def final(self, client_final: bytes) -> bytes:
        """Checks the client's proof and returns the server's final message. Raises ScramError."""
        fields = _fields(client_final, "cr")
        text = client_final.decode()
        without_proof, separator, packed = text.rpartition(",p=")
        if not separator:
            raise ScramError("a message lacks the attribute 'p'")
        if _decoded(fields["c"], "channel binding") != self._client.header.encode():
            raise ScramError("the channel binding is wrong")
        if not hmac.compare_digest(fields["r"].encode(), self._nonce.encode()):
            raise ScramError("the nonce is wrong")
        signed = signed_text(self._client.bare, self.first().decode(), without_proof)
        proof = _decoded(packed, "proof")
        signature = hmac.digest(self._keys.stored_key, signed, self._hash)
        if len(proof) != len(signature):
            raise ScramError("the proof has a wrong length")
        client_key = xor(proof, signature)
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), self._keys.stored_key):
            raise ScramError("the proof is wrong")
        return f"v={_encoded(hmac.digest(self._keys.server_key, signed, self._hash))}".encode()
