"""Signed JSON web tokens (RFC 7515, 7519), as Kafka's broker checks them: algorithms, keys, claims.

Pure: the caller passes the keys and the time. Only RS, PS and ES algorithms are allowed, so a token without a signature
(``none``), or one signed with a public key as the secret of HS256, is never valid. Needs the package cryptography.
"""

from __future__ import annotations

from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from odradek.security.key_sets import KeySet, WebKey, read_object, unpacked

ALGORITHMS: dict[str, tuple[str, hashes.HashAlgorithm]] = {
    "RS256": ("RSA", hashes.SHA256()), "RS384": ("RSA", hashes.SHA384()), "RS512": ("RSA", hashes.SHA512()),
    "PS256": ("RSA", hashes.SHA256()), "PS384": ("RSA", hashes.SHA384()), "PS512": ("RSA", hashes.SHA512()),
    "ES256": ("P-256", hashes.SHA256()), "ES384": ("P-384", hashes.SHA384()), "ES512": ("P-521", hashes.SHA512()),
}  # fmt: skip
"""Algorithm → the kind of its keys, and its hash function."""
MOST_CANDIDATES = 16
"""The keys that are tried for a token without a key id."""
_SHOWN = 100


class TokenRefused(Exception):
    """A token is not valid. The text is for the log: it has no part of the signature."""


class UnknownKey(TokenRefused):
    """No known key has the id of the token, or is for its algorithm. The provider may have a newer set of keys."""


class TokenRules(NamedTuple):
    """What a listener expects of tokens. ``issuer`` "" allows every issuer. Without ``audiences``, a token may name no
    audience, as in Kafka."""

    issuer: str = ""
    audiences: tuple[str, ...] = ()
    clock_skew_s: int = 30
    scope_claim: str = "scope"
    subject_claim: str = "sub"


class WebToken(NamedTuple):
    """The claims of a valid token. ``end_ms``: its end in ms since 1970."""

    subject: str
    end_ms: int
    scopes: tuple[str, ...] = ()


def check(token: str, keys: KeySet, rules: TokenRules, now_ms: int) -> WebToken:
    """Checks the signature and the claims of a token. Raises TokenRefused, and its UnknownKey."""
    parts = token.strip().split(".")
    if len(parts) != 3 or not all(parts):
        raise TokenRefused(f"it has {sum(map(bool, parts))} sections; a signed token has three")
    try:
        header = read_object(unpacked(parts[0]))
    except ValueError as error:
        raise TokenRefused(f"its header cannot be read: {str(error)[:_SHOWN]}") from None
    _check_signature(header, f"{parts[0]}.{parts[1]}".encode(), parts[2], keys)
    try:
        claims = read_object(unpacked(parts[1]))
    except ValueError as error:
        raise TokenRefused(f"its claims cannot be read: {str(error)[:_SHOWN]}") from None
    return _check_claims(claims, rules, now_ms)


# --- the signature --------------------------------------------------------------------------------------------------


def _check_signature(header: dict[str, object], signed: bytes, packed: str, keys: KeySet) -> None:
    algorithm = header.get("alg")
    known = ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else None
    if not isinstance(algorithm, str) or known is None:
        raise TokenRefused(f"its algorithm is {_shown(algorithm)}; expected one of {', '.join(ALGORITHMS)}")
    if "crit" in header:
        raise TokenRefused("its header has crit, and this broker knows no extension")
    key_id = header.get("kid")
    if not isinstance(key_id, str | None):
        raise TokenRefused("its kid is not a text")
    try:
        signature = unpacked(packed)
    except ValueError:
        raise TokenRefused("its signature is not valid base64url") from None
    kind, digest = known
    candidates = keys.candidates(key_id, algorithm, kind)
    if not candidates:
        of_key = "has no kid" if key_id is None else f"has the kid {_shown(key_id)}"
        raise UnknownKey(f"it {of_key}, and no key of the set has it and is for {algorithm}")
    if not any(_is_signed(one, algorithm, digest, signature, signed) for one in candidates[:MOST_CANDIDATES]):
        raise TokenRefused("its signature is wrong")


def _is_signed(one: WebKey, algorithm: str, digest: hashes.HashAlgorithm, signature: bytes, signed: bytes) -> bool:
    try:
        if isinstance(one.key, ec.EllipticCurvePublicKey):
            one.key.verify(_ecdsa(signature, one.key.curve), signed, ec.ECDSA(digest))
        else:
            one.key.verify(signature, signed, _padding(algorithm, digest), digest)
    except (InvalidSignature, ValueError):
        return False
    return True


def _padding(algorithm: str, digest: hashes.HashAlgorithm) -> padding.AsymmetricPadding:
    if algorithm.startswith("RS"):
        return padding.PKCS1v15()
    return padding.PSS(mgf=padding.MGF1(digest), salt_length=digest.digest_size)


def _ecdsa(signature: bytes, curve: ec.EllipticCurve) -> bytes:
    """Returns the DER form of a signature of two numbers. Raises ValueError for another length."""
    size = (curve.key_size + 7) // 8
    if len(signature) != 2 * size:
        raise ValueError
    return encode_dss_signature(int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big"))


# --- the claims -----------------------------------------------------------------------------------------------------


def _check_claims(claims: dict[str, object], rules: TokenRules, now_ms: int) -> WebToken:
    end_s, issued_s, begin_s = (_time(claims, name) for name in ("exp", "iat", "nbf"))
    if end_s is None or issued_s is None:
        raise TokenRefused("it lacks the claim exp or iat")
    now_s = now_ms // 1000
    if now_s - rules.clock_skew_s >= end_s:
        raise TokenRefused(f"it ended {now_s - end_s:,} s ago")
    if begin_s is not None and now_s + rules.clock_skew_s < begin_s:
        raise TokenRefused(f"it begins in {begin_s - now_s:,} s")
    if end_s < max(issued_s, begin_s or 0):
        raise TokenRefused("it ends before its begin")
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise TokenRefused(f"its issuer is {_shown(claims.get('iss'))}")
    _check_audience(claims, rules)
    return WebToken(_subject(claims, rules), end_s * 1000, _scopes(claims, rules))


def _time(claims: dict[str, object], name: str) -> int | None:
    """Returns a time in seconds since 1970. Raises TokenRefused."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise TokenRefused(f"its claim {name} is not a time")
    return int(value)


def _check_audience(claims: dict[str, object], rules: TokenRules) -> None:
    audience = claims.get("aud")
    if audience is None:
        if rules.audiences:
            raise TokenRefused("it has no audience")
        return
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or not all(isinstance(one, str) for one in audiences):
        raise TokenRefused("its claim aud is neither a text nor a list of texts")
    if not set(audiences) & set(rules.audiences):
        raise TokenRefused(f"its audience is {_shown(', '.join(audiences))}")


_TRIMMED = "".join(map(chr, range(0x21)))
"""What Java's ``trim`` removes. Python's ``strip`` removes more, such as U+00A0, and would make one user another."""


def _subject(claims: dict[str, object], rules: TokenRules) -> str:
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject.strip(_TRIMMED):
        raise TokenRefused(f"it names no user in the claim {rules.subject_claim}")
    return subject.strip(_TRIMMED)


def _scopes(claims: dict[str, object], rules: TokenRules) -> tuple[str, ...]:
    claim = claims.get(rules.scope_claim)
    scopes = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    if not all(isinstance(one, str) and one.strip(_TRIMMED) for one in scopes):
        raise TokenRefused(f"its claim {rules.scope_claim} has an empty scope")
    trimmed = tuple(one.strip(_TRIMMED) for one in scopes)
    if len(set(trimmed)) < len(trimmed):
        raise TokenRefused(f"its claim {rules.scope_claim} has a scope twice")
    return trimmed


def _shown(value: object) -> str:
    """Returns a value of a token for the log, short and with control characters escaped."""
    return repr(value if isinstance(value, str | None) else type(value).__name__)[:_SHOWN]
