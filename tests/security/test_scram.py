"""SCRAM: the RFCs' examples, both sides against each other, and messages that are not as they should be."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.access.credential import Credential
from odradek.security import jaas, oauth, secret
from odradek.security.scram import (
    HASHES,
    ScramClient,
    ScramError,
    ScramServer,
    escaped,
    keys_of,
    read_client_first,
    salted_password,
    unescaped,
)
from odradek.security.secret import Secret
from odradek.security.stores import openssl_name

from odradek.core.errors import ConfigError  # isort: skip

# RFC 7677, section 3.
CLIENT_NONCE, SERVER_NONCE = "rOprNGfwEbeRWgbNEkqO", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SHA_256 = "SCRAM-SHA-256"


def stored(mechanism: str, password: str, salt: bytes = SALT) -> Credential:
    return keys_of(mechanism, salted_password(mechanism, Secret(password), salt, 4096), salt, 4096)


def test_the_example_of_the_rfc_on_both_sides() -> None:
    client = ScramClient(SHA_256, "user", Secret("pencil"), CLIENT_NONCE)
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    server = ScramServer(SHA_256, read_client_first(client.first()), stored(SHA_256, "pencil"), SERVER_NONCE)
    assert server.first() == SERVER_FIRST
    assert client.final(SERVER_FIRST) == CLIENT_FINAL
    assert server.final(CLIENT_FINAL) == SERVER_FINAL
    client.verify(SERVER_FINAL)


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


@given(st.sampled_from(sorted(HASHES)), texts, texts, texts, st.booleans())
def test_a_login_succeeds_with_the_right_password_alone(
    mechanism: str, user: str, password: str, other: str, is_token: bool
) -> None:
    extensions = {"tokenauth": "true"} if is_token else None
    client = ScramClient(mechanism, user, Secret(other), "abc", extensions=extensions)
    first = read_client_first(client.first())
    assert (first.user, first.is_token) == (user, is_token)
    server = ScramServer(mechanism, first, stored(mechanism, password), "xyz")
    final = client.final(server.first())
    if password == other:
        client.verify(server.final(final))
    else:
        with pytest.raises(ScramError, match="the proof is wrong"):
            server.final(final)


@given(texts)
def test_names_are_escaped(name: str) -> None:
    assert unescaped(escaped(name)) == name
    assert "," not in escaped(name)


@pytest.mark.parametrize(
    ("server_first", "fault"),
    [
        (b"r=other,s=YQ==,i=4096", "nonce"),
        (b"r=abc,s=YQ==,i=4096", "nonce"),
        (b"r=abc d,s=YQ==,i=4096", "nonce"),
        (b"r=abcd\n,s=YQ==,i=4096", "nonce"),
        (b"m=x,r=abcd,s=YQ==,i=4096", "attribute 'r'"),
        (b"r=abcd,s=YQ==", "attribute 'i'"),
        (b"r=abcd,s=,i=4096", "salt is empty"),
        (b"r=abcd,s=???,i=4096", "salt is not valid base64"),
        (b"r=abcd,s=YQ==,i=4095", "4,095 iterations"),
        (b"r=abcd,s=YQ==,i=1000001", "1,000,001 iterations"),
        (b"r=abcd,s=YQ==,i=99999999999", "not a number"),
        (b"r=abcd,s=YQ==,i=-5", "not a number"),
        ("r=abcd,s=YQ==,i=４０９６".encode(), "not a number"),
        (b"\xff\xfe", "UTF-8"),
        (b"r=" + b"a" * 70_000, "70,002 bytes"),
        (b"", "attribute 'r'"),
    ],
)
def test_a_client_refuses_a_servers_first_message(server_first: bytes, fault: str) -> None:
    with pytest.raises(ScramError, match=fault):
        ScramClient(SHA_256, "user", Secret("pencil"), "abc").final(server_first)


@pytest.mark.parametrize("server_final", [b"", b"v=", b"v=AAAA", b"e=other-error", b"x=1", SERVER_FINAL])
def test_a_client_refuses_a_server_that_does_not_know_the_password(server_final: bytes) -> None:
    client = ScramClient(SHA_256, "user", Secret("another"), CLIENT_NONCE)
    client.final(SERVER_FIRST)
    with pytest.raises(ScramError):
        client.verify(server_final)
    with pytest.raises(ScramError, match="signature is wrong"):
        ScramClient(SHA_256, "user", Secret("pencil"), CLIENT_NONCE).verify(b"v=AAAA")


@pytest.mark.parametrize(
    ("client_first", "fault"),
    [
        (b"p=tls-unique,,n=a,r=b", "channel binding"),
        (b"y,,n=a,r=b", "channel binding"),
        (b"n,b=admin,n=a,r=b", "malformed"),
        (b"n,,n=,r=b", "empty"),
        (b"n,,n=a,r=b\0", "not printable"),
        (b"n,,n=a,r=b\nc", "not printable"),
        (b"n,,n=a,r=b c", "not printable"),
        ("n,,n=a,r=b\u00e9".encode(), "not printable"),
        (b"n,,n=a,r=b,tokenauth", "an extension"),
        (b"n,,n=a,r=b,tokenauth=", "an extension"),
        (b"n,,n=a,r=b,", "an extension"),
        (b"n,,n=a,r=b,=true", "an extension"),
        (b"n,,n=a,r=b,x=1,y2=z", "an extension"),
        (b"n,,n=a,r=", "empty"),
        (b"n,,n=a=ZZ,r=b", "escape"),
        (b"n,,n=a", "attribute 'r'"),
        (b"hello", "malformed"),
    ],
)
def test_a_server_refuses_a_clients_first_message(client_first: bytes, fault: str) -> None:
    with pytest.raises(ScramError, match=fault):
        read_client_first(client_first)


@pytest.mark.parametrize(
    "client_final",
    [
        CLIENT_FINAL.replace(b"biws", b"eSws"),
        CLIENT_FINAL.replace(b"k0,p=", b"k1,p="),
        CLIENT_FINAL[:-4] + b"AAA=",
        CLIENT_FINAL.partition(b",p=")[0],
        CLIENT_FINAL.partition(b",p=")[0] + b",p=AAAA",
        CLIENT_FINAL.replace(b",p=", b",x=1,p="),
        b"",
    ],
)
def test_a_server_refuses_a_clients_final_message(client_final: bytes) -> None:
    first = read_client_first(b"n,,n=user,r=" + CLIENT_NONCE.encode())
    with pytest.raises(ScramError):
        ScramServer(SHA_256, first, stored(SHA_256, "pencil"), SERVER_NONCE).final(client_final)


def test_extensions_of_a_client_are_read() -> None:
    assert read_client_first(b"n,,n=a,r=b,tokenauth=true").is_token
    assert read_client_first(b"n,,n=a,r=b,x=1=2 3,tokenauth=TRUE").is_token
    assert not read_client_first(b"n,,n=a,r=b,x=1").is_token


# --- login modules, tokens, suites ------------------------------------------------------------------------------------


def test_login_modules_are_read_as_java_reads_them() -> None:
    module = jaas.read_jaas('a.b.ScramLoginModule  REQUIRED\n user="a \\"b\\" \\\\ ;=" pass=\'x"y\' bare=true ;')
    assert (module.name, module.options) == ("ScramLoginModule", {"user": 'a "b" \\ ;=', "pass": 'x"y', "bare": "true"})
    assert "x" not in repr(module).replace("ScramLoginModule", "").replace("pass", "")


@pytest.mark.parametrize(
    "text",
    ["", "Module", "Module required", 'Module sometimes a="hidden";', 'Module required a="hidden;',
     "M required hidden;", 'M required a="hidden"; M required;', 'M required "a"="hidden";', "M required a=;"],
)  # fmt: skip
def test_a_wrong_login_module_is_refused_without_its_text(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^sasl\.jaas\.config: ") as refused:
        jaas.read_jaas(text)
    assert "hidden" not in str(refused.value)


def test_a_token_is_packed_with_its_extensions_and_odd_ones_are_refused() -> None:
    assert oauth.token_message(Secret("a.b.c"), [("k", "v")]) == b"n,,\x01auth=Bearer a.b.c\x01k=v\x01\x01"
    for token, extensions in (("a\x01b", []), ("a", [("k1", "v")]), ("a", [("k", "\x01")])):
        with pytest.raises(oauth.TokenError):
            oauth.token_message(Secret(token), extensions)
    with pytest.raises(oauth.TokenError, match="claim exp"):
        oauth.end_s(Secret("no.token.here"))


@pytest.mark.parametrize(
    ("java", "openssl"),
    [
        ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_256_CBC_SHA256", "DHE-RSA-AES256-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
    ],
)
def test_cipher_suites_have_openssls_names(java: str, openssl: str) -> None:
    assert openssl_name(java) == openssl


def test_a_secret_shows_nothing() -> None:
    hidden = secret.Secret("text-of-secret")
    assert "text-of-secret" not in f"{hidden} {hidden!r} {hidden!s} {[hidden]} {hidden:>20}"
    assert (hidden == secret.Secret("text-of-secret"), hidden == secret.Secret("x"), bool(Secret(""))) == (
        True,
        False,
        False,
    )
