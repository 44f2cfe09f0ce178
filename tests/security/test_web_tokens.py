"""Signed tokens and key sets: each algorithm, each claim, and what must never be accepted."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.issuer import AUDIENCE, CURVES, ISSUER, Issuer, number, packed, packed_json

from odradek.security.key_sets import KeySet, KeySetError, read_key_set
from odradek.security.web_tokens import ALGORITHMS, TokenRefused, TokenRules, UnknownKey, WebToken, check

RULES = TokenRules(ISSUER, (AUDIENCE, "other"))


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def keys(issuer: Issuer) -> KeySet:
    return read_key_set(issuer.key_set.read_bytes())


def checked(token: str, keys: KeySet, rules: TokenRules = RULES, after_s: float = 0) -> WebToken:
    return check(token, keys, rules, int((time.time() + after_s) * 1000))


def refused(token: str, keys: KeySet, rules: TokenRules = RULES, after_s: float = 0) -> str:
    with pytest.raises(TokenRefused) as error:
        checked(token, keys, rules, after_s)
    signature = token.rpartition(".")[2]
    assert not signature or signature not in str(error.value)
    return str(error.value)


# --- signatures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm(issuer: Issuer, keys: KeySet, algorithm: str) -> None:
    before = issuer.claims()["exp"]
    token = issuer.token("alice", algorithm)
    found = checked(token, keys)
    assert found.subject == "alice"
    assert before * 1000 <= found.end_ms <= issuer.claims()["exp"] * 1000
    begin, _, signature = token.rpartition(".")
    changed = ("B" if signature[10] != "B" else "C").join((signature[:10], signature[11:]))
    assert refused(f"{begin}.{changed}", keys) == "its signature is wrong"
    head, claims = begin.split(".")
    other = packed_json(issuer.claims("mallory"))
    assert claims != other
    assert refused(f"{head}.{other}.{signature}", keys) == "its signature is wrong"


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "nOnE", "", "HS256", "HS512", "EdDSA", "RS1", None, 5, []]
)
def test_other_algorithms_are_refused(issuer: Issuer, keys: KeySet, algorithm: Any) -> None:
    signed = issuer.token(header={"alg": algorithm})
    assert refused(signed, keys).startswith("its algorithm is ")
    head, claims, _ = signed.split(".")
    for signature in ("", packed(b""), packed(b"x")):
        assert refused(f"{head}.{claims}.{signature}", keys)


def test_a_public_key_is_no_secret_of_hs256(issuer: Issuer, keys: KeySet) -> None:
    """The classical forgery: the header says HS256, and the signature is made with the public key as the secret."""
    public = issuer.rsa_key.public_key()
    for form in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.PEM, PublicFormat.PKCS1),
        json.dumps(issuer.rows()[0]).encode(),
    ):
        for algorithm, digest in (("HS256", hashlib.sha256), ("RS256", hashlib.sha256)):
            signed = f"{packed_json({'alg': algorithm, 'kid': 'k1'})}.{packed_json(issuer.claims())}"
            forged = f"{signed}.{packed(hmac.digest(form, signed.encode(), digest))}"
            assert refused(forged, keys)


def test_a_key_checks_its_own_kind_alone(issuer: Issuer, keys: KeySet) -> None:
    for algorithm, key_id in (("RS256", "ES256"), ("ES256", "k1"), ("ES384", "ES256"), ("ES256", "ES512")):
        with pytest.raises(UnknownKey, match="no key of the set"):
            checked(issuer.token("alice", algorithm, header={"kid": key_id}), keys)
    # The signature of one curve as that of another algorithm.
    assert refused(issuer.token("alice", "ES256", header={"alg": "ES384", "kid": "ES384"}), keys)
    assert refused(issuer.token("alice", "RS256", header={"alg": "PS256"}), keys) == "its signature is wrong"


def test_a_foreign_kid_is_unknown(issuer: Issuer, keys: KeySet, tmp_path: Path) -> None:
    for key_id in ("k2", "", "../../k1", "K1", "x" * 5000):
        with pytest.raises(UnknownKey) as error:
            checked(issuer.token(header={"kid": key_id}), keys)
        assert len(str(error.value)) < 300
    assert refused(issuer.token(header={"kid": 1}), keys) == "its kid is not a text"
    mallory = Issuer(tmp_path, "k2")
    mallory.key_id = "k1"
    assert refused(mallory.token(), keys) == "its signature is wrong"
    assert refused(mallory.token(header={"jwk": mallory.rows()[0]}), keys) == "its signature is wrong"


def test_a_token_without_kid_is_checked_by_the_keys_of_its_kind(issuer: Issuer, keys: KeySet, tmp_path: Path) -> None:
    for algorithm in ALGORITHMS:
        assert checked(issuer.token("alice", algorithm, header={"kid": None}), keys).subject == "alice"
    assert refused(Issuer(tmp_path, "k2").token(header={"kid": None}), keys) == "its signature is wrong"
    with pytest.raises(UnknownKey, match="has no kid"):
        checked(issuer.token(header={"kid": None}), KeySet())


def test_extensions_of_the_header_are_refused(issuer: Issuer, keys: KeySet) -> None:
    assert "crit" in refused(issuer.token(header={"crit": ["b64"], "b64": False}), keys)
    assert "crit" in refused(issuer.token(header={"crit": []}), keys)


@pytest.mark.parametrize("token", [
    "", ".", "..", "...", "a.b", "a.b.c.d", "a..c", "🙂.b.c", "a.b.c\x00", f"{packed(b'[]')}.e30.AA",
    f"{packed(b'null')}.e30.AA", f"{packed(b'{}')}.e30.AA", f"{packed(b'[' * 5000)}.e30.AA",
    f"{packed(b'{' + b'%a' * 3 + b'}')}.e30.AA", f"{packed(b'1' * 6000)}.e30.AA",
])  # fmt: skip
def test_what_is_no_token(keys: KeySet, token: str) -> None:
    with pytest.raises(TokenRefused):
        checked(token, keys)


def test_claims_that_are_no_object(issuer: Issuer, keys: KeySet) -> None:
    for claims in (packed(b"[]"), packed(b'"x"'), packed(b"\xff"), packed(b'{"sub":"a","sub":"b"}'), "e", "e30!",
                   packed(b'{"a":' * 5000)):  # fmt: skip
        assert "its claims cannot be read" in refused(issuer.signed(claims), keys)
    twice = packed(b'{"alg":"RS256","alg":"none"}')
    assert "a name is there twice" in refused(f"{twice}.e30.AA", keys)


# --- claims -----------------------------------------------------------------------------------------------------------


def test_times(issuer: Issuer, keys: KeySet) -> None:
    token = issuer.token(lifetime_s=100)
    assert checked(token, keys, after_s=128)
    assert "it ended 31 s ago" in refused(token, keys, after_s=131)
    assert "it ended 1 s ago" in refused(token, keys, RULES._replace(clock_skew_s=0), after_s=101)
    now = int(time.time())
    assert checked(issuer.token(nbf=now + 20), keys)
    assert "it begins in" in refused(issuer.token(nbf=now + 60), keys)
    assert refused(issuer.token(iat=None), keys) == "it lacks the claim exp or iat"
    assert refused(issuer.token(exp=None), keys) == "it lacks the claim exp or iat"
    assert refused(issuer.token(iat=now + 1000, lifetime_s=900), keys) == "it ends before its begin"
    for value in ("1", True, -1, 1e300, [], {}):
        assert refused(issuer.token(exp=value), keys) == "its claim exp is not a time"
    assert checked(issuer.token(exp=now + 60.5), keys).end_ms == (now + 60) * 1000
    assert "not a time" in refused(issuer.signed(packed(b'{"exp":NaN,"iat":1,"sub":"a"}')), keys)
    assert "not a time" in refused(issuer.signed(packed(b'{"exp":1e999,"iat":1,"sub":"a"}')), keys)


def test_issuer_and_audience(issuer: Issuer, keys: KeySet) -> None:
    assert "its issuer is" in refused(issuer.token(iss="https://other.test"), keys)
    assert "its issuer is None" in refused(issuer.token(iss=None), keys)
    assert "its issuer is 'list'" in refused(issuer.token(iss=[ISSUER]), keys)
    assert checked(issuer.token(iss="https://other.test"), keys, TokenRules(audiences=(AUDIENCE,)))
    assert checked(issuer.token(aud=["x", AUDIENCE]), keys)
    assert refused(issuer.token(aud=None), keys) == "it has no audience"
    assert "its audience is 'x, y'" in refused(issuer.token(aud=["x", "y"]), keys)
    assert "its audience is" in refused(issuer.token(aud=[]), keys)
    for value in (5, [5], {"a": 1}):
        assert "neither a text nor" in refused(issuer.token(aud=value), keys)
    without = TokenRules(ISSUER)
    assert "its audience is" in refused(issuer.token(), keys, without), "as in Kafka"
    assert checked(issuer.token(aud=None), keys, without)


def test_user_and_scopes(issuer: Issuer, keys: KeySet) -> None:
    assert checked(issuer.token("  alice "), keys).subject == "alice"
    for other in ("alice\xa0", "\u3000alice", "alice\u2028", "alice\x85"):  # Java's trim leaves these
        assert checked(issuer.token(other), keys).subject == other
    for value in ("", "   ", 5, None, ["alice"]):
        assert "names no user in the claim sub" in refused(issuer.token(sub=value), keys)
    rules = RULES._replace(subject_claim="azp", scope_claim="scp")
    assert checked(issuer.token(azp="app", scp=["a", "b"]), keys, rules)[::2] == ("app", ("a", "b"))
    assert checked(issuer.token(scope="a b"), keys).scopes == ("a b",)
    assert "a scope twice" in refused(issuer.token(scope=["a", "a"]), keys)
    assert "an empty scope" in refused(issuer.token(scope=""), keys)
    assert "an empty scope" in refused(issuer.token(scope=["a", 5]), keys)
    assert checked(issuer.token(scope=5), keys).scopes == ()


# --- key sets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "reason"), [
    ("", "it is not a set"), ("[]", "not a JSON object"), ("{}", "no list of keys"),
    ('{"keys":{}}', "no list of keys"), ('{"keys":[]}', "no RSA or EC key"), ('{"keys":[5]}', "key 1 is invalid: it"),
    ('{"keys":[{"kty":"RSA"}]}', "it has no 'n'"), ('{"keys":[{"kty":"oct","k":"AAAA"}]}', "no RSA or EC key"),
    ('{"keys":[{"kty":"RSA","n":5,"e":"AQAB"}]}', "base64"),
    ('{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}]}', "key 1 is invalid"),
    ('{"keys":[{"kty":"RSA","kid":5}]}', "kid or alg"), ("[" * 5000, "nested"),
    ('{"keys":[' + ",".join(["{}"] * 1001) + "]}", "1,001 keys"),
])  # fmt: skip
def test_what_is_no_key_set(text: str, reason: str) -> None:
    with pytest.raises(KeySetError, match=reason):
        read_key_set(text.encode())


def test_weak_keys_and_keys_of_other_uses(issuer: Issuer) -> None:
    (row, *curves) = issuer.rows()
    for size in (1024, 2040, 16_392):
        weak = row | {"n": number((1 << size) - 1)}
        with pytest.raises(KeySetError, match="expected 2,048 to 16,384"):
            read_key_set(json.dumps({"keys": [weak]}).encode())
    rows = [row | {"use": "enc"}, curves[0] | {"key_ops": ["sign"]}, {"kty": "OKP", "crv": "Ed25519"}, curves[1]]
    assert [one.id for one in read_key_set(json.dumps({"keys": rows}).encode()).keys] == ["ES384"]
    only = read_key_set(json.dumps({"keys": [row | {"alg": "RS512"}]}).encode())
    assert only.candidates("k1", "RS512", "RSA")
    assert not only.candidates("k1", "RS256", "RSA"), "a key for one algorithm checks no other"


def test_an_invalid_key_is_ignored_beside_a_valid_one(issuer: Issuer) -> None:
    """As in Kafka: a provider that adds a weak or odd key does not stop the logins by its other keys."""
    (row, *_) = issuer.rows()
    others = {
        "it has 1,024 bits": row | {"n": number((1 << 1024) - 1), "kid": "weak"},
        "it has no 'e'": {name: value for name, value in row.items() if name != "e"} | {"kid": "bare\nINFO"},
        "not a JSON object": 5,
    }
    for reason, other in others.items():
        for rows in ([row, other], [other, row]):
            found = read_key_set(json.dumps({"keys": rows}).encode())
            assert checked(issuer.token(), found).subject
            (line,) = found.faults
            assert f"key {rows.index(other) + 1}" in line
            assert reason in line
            assert not isinstance(other, dict) or repr(other["kid"]) in line
        with pytest.raises(KeySetError, match=reason):
            read_key_set(json.dumps({"keys": [other]}).encode())


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "x", "", [], [5], [[]], {}, {"verify": 1}], ids=repr)
def test_a_member_of_any_type_is_no_error_of_the_program(issuer: Issuer, value: Any) -> None:
    good = issuer.rows()
    for at, row in enumerate(good):
        for name in {*row, "use", "key_ops", "alg", "kid", "crv", "kty"}:
            rows = [*good[:at], row | {name: value}, *good[at + 1 :]]
            read = read_key_set(json.dumps({"keys": rows}).encode())
            assert len(read.keys) >= len(good) - 1, name
            with suppress(KeySetError):
                read_key_set(json.dumps({"keys": [row | {name: value}]}).encode())
    for whole in (value, {"keys": value}, {"keys": [value]}):
        with pytest.raises(KeySetError):
            read_key_set(json.dumps(whole).encode())


def test_curves_have_their_hash(issuer: Issuer) -> None:
    assert {name: ALGORITHMS[name][1].name for name in CURVES} == {
        "ES256": "sha256", "ES384": "sha384", "ES512": "sha512"
    }  # fmt: skip
