"""Stores with keys in odd places, variables without a source: one line names the setting and shows no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from support.certificates import Authority

from odradek.broker.settings.config import BrokerConfig, start_texts
from odradek.broker.settings.listener_settings import secured
from odradek.broker.settings.tls_settings import server_tls
from odradek.client.config import ClientConfig
from odradek.core.errors import ConfigError
from odradek.security.client_security import TokenSource
from odradek.security.stores import client_context, server_context

LISTENER = {"listeners": "A://127.0.0.1:0", "listener.security.protocol.map": "A:SSL"}
CHAIN = "listener.name.a.ssl.keystore.certificate.chain"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stores"))


@pytest.fixture(scope="module")
def both(authority: Authority) -> Path:
    """A file with a certificate and its key."""
    return authority.issue("both")


def parts(pem: str) -> tuple[str, str]:
    """Returns the key and the certificates of a PEM file."""
    end = pem.index("PRIVATE KEY-----", pem.index("END")) + len("PRIVATE KEY-----")
    begin = pem.index("-----BEGIN PRIVATE")
    return pem[begin:end], pem[:begin] + pem[end:]


def tls_client(settings: dict[str, str]) -> ClientConfig:
    return ClientConfig.of({"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SSL", **settings})


def read_stores(settings: dict[str, str]) -> None:
    for listener in secured(BrokerConfig(settings)):
        server_context(server_tls(listener))


def load(settings: dict[str, str]) -> None:
    tls = tls_client(settings).security.tls
    assert tls is not None
    client_context(tls)


def test_a_key_in_the_chain_is_refused_and_not_shown(both: Path) -> None:
    chain = {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": both.read_text()}
    assert "PRIVATE KEY" not in repr(tls_client(chain))
    with pytest.raises(ConfigError, match=r"^ssl.keystore.certificate.chain: it has a private key.* ssl.keystore.key$"):
        load(chain)
    with pytest.raises(ConfigError, match=f"^--config {CHAIN}: every user of the machine can read") as refusal:
        start_texts([f"{CHAIN}={both.read_text()}"])
    assert "PRIVATE" not in str(refusal.value)


def test_the_same_file_may_have_certificate_and_key(both: Path, authority: Authority) -> None:
    """librdkafka's two settings may name one file, and ssl.ca.location a folder or "probe"."""
    load({"ssl.certificate.location": str(both), "ssl.key.location": str(both), "ssl.ca.location": str(authority.pem)})
    load({"ssl.ca.location": str(authority.directory)})
    trust = tls_client({"ssl.ca.location": "probe"}).security.tls
    assert trust is not None
    assert trust.trust is None, "the authorities of the system"


def test_what_is_wrong_with_a_key_is_said(both: Path, authority: Authority) -> None:
    key, certificate = parts(both.read_text())
    other, _ = parts(authority.issue("other").read_text())
    store = {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate}
    load(store | {"ssl.keystore.key": key})
    with pytest.raises(ConfigError, match="does not belong to the first certificate"):
        load(store | {"ssl.keystore.key": other})
    closed = (
        load_pem_private_key(key.encode(), None)
        .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"right"))
        .decode()
    )
    load(store | {"ssl.keystore.key": closed, "ssl.key.password": "right"})
    with pytest.raises(ConfigError, match=r"ssl.key.password is wrong, or the key is damaged") as wrong:
        load(store | {"ssl.keystore.key": closed, "ssl.key.password": "canary"})
    assert "canary" not in str(wrong.value)


def test_a_store_of_a_listener_is_named_as_its_setting(tmp_path: Path) -> None:
    own = {
        "listener.name.a.ssl.keystore.location": str(tmp_path / "none.pem"),
        "listener.name.a.ssl.keystore.type": "PEM",
    }
    with pytest.raises(ConfigError, match=r"^listener.name.a.ssl.keystore.location .*none.pem: No such file"):
        read_stores(LISTENER | own)
    common = {name.removeprefix("listener.name.a."): value for name, value in own.items()}
    with pytest.raises(ConfigError, match=r"^ssl.keystore.location .*none.pem: No such file"):
        read_stores(LISTENER | common)


@pytest.mark.parametrize("text", ["${vault:a:b}", "${File:/x:y}", "${CANARY}", 'M required password="${vault:a:b}";'])
def test_a_variable_without_a_source_is_an_error(text: str) -> None:
    """Its text would be the secret."""
    with pytest.raises(ConfigError, match=r"^delegation.token.secret.key: the variable \$\{.* names no source"):
        start_texts([], {"delegation.token.secret.key": text})


def test_a_part_of_a_rule_and_a_variable_of_another_program_stay() -> None:
    rules = {"ssl.principal.mapping.rules": r"RULE:^CN=(.*?)${2}.*$/$1/L,DEFAULT", "broker.rack": "${spring.name}"}
    assert start_texts([], rules) == rules


def test_a_name_with_capitals_is_named(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("listener.name.A.ssl.keystore.type=PEM\n")
    from odradek.text.config_providers import read_settings_file

    with pytest.raises(ConfigError, match=r"line 1: .*names have small letters"):
        read_settings_file(file, "--config-file")


def test_a_source_of_tokens_shows_no_secret_of_its_address() -> None:
    source = TokenSource("https://me:canary@host/t?key=canary", extensions=(("a", "canary"),))
    assert repr(source) == "TokenSource(https://host/t, extensions: a)"


@pytest.mark.parametrize("url", ["https://", "http://host:port/", "https://[::1/t", "https://h/ t", "https://h:0/"])
def test_an_address_without_a_host_makes_no_client(url: str) -> None:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    with pytest.raises(ConfigError, match=r"^sasl.oauthbearer.token.endpoint.url: expected"):
        ClientConfig.of({"bootstrap.servers": "127.0.0.1:1", **login, "sasl.oauthbearer.token.endpoint.url": url})
