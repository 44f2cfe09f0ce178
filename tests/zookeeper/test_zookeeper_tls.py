"""TLS to a real ZooKeeper: connections, commands and consumers; certificates that do not fit are named."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from support.brokers import eventually, unique
from support.zookeeper_harness import GroupHarness, read

import odradek
from odradek.cli.main import run
from odradek.core.errors import ConfigError
from odradek.testing.ports import reserve_ports
from odradek.testing.zookeeper import ZooKeeperFailed
from odradek.zookeeper.config import config_of
from odradek.zookeeper.connection import ZooKeeperConnection
from odradek.zookeeper.errors import ZooKeeperUnreachable


class TlsNode(NamedTuple):
    """A node with a plain and a TLS port. ``settings`` are those of a client that the node accepts."""

    plain: str
    tls: str
    settings: dict[str, str]

    def file(self, folder: Path, **changes: str | None) -> Path:
        """Writes a properties file with the changed settings. A change to None leaves a setting out."""
        given = self.settings | {name.replace("_", "."): value for name, value in changes.items()}
        path = folder / f"{unique('client')}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in given.items() if value is not None))
        return path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate and its key in one PEM file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", certificate, "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "both.pem").write_text(key.read_text() + certificate.read_text())
    return folder


@pytest.fixture(scope="module")
def node(certificates: Path) -> Iterator[TlsNode]:
    (held,) = reserve_ports(1)
    port = held.port
    config = {
        "secureClientPort": port,
        "secureClientPortAddress": "127.0.0.1",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": certificates / "both.pem",
        "ssl.trustStore.location": certificates / "cert.pem",
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.type": "PEM",
        "ssl.hostnameVerification": "false",
    }
    try:
        made = odradek.ZooKeeper(config=config)
    except ZooKeeperFailed as error:
        pytest.skip(f"no ZooKeeper for this test: {error}")
    with made:
        settings = {
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.ssl.truststore.location": str(certificates / "cert.pem"),
            "zookeeper.ssl.keystore.location": str(certificates / "both.pem"),
        }
        yield TlsNode(made.connect_string, f"127.0.0.1:{port}", settings)


@pytest.fixture
def harness(bootstrap: str, node: TlsNode, group: str, filled: str) -> Iterator[GroupHarness]:
    """The client of the test itself uses the plain port."""
    kazoo = KazooClient(node.plain)
    kazoo.start()
    yield GroupHarness(bootstrap, node.tls, kazoo, group, filled)
    kazoo.stop()
    kazoo.close()


def test_a_connection_names_the_certificate_that_does_not_fit(node: TlsNode) -> None:
    with ZooKeeperConnection(config_of(node.tls, node.settings, {})) as connection:
        assert connection.exists("/zookeeper")
    quick = node.settings | {"zookeeper.connection.timeout.ms": "1000"}
    del quick["zookeeper.ssl.truststore.location"]
    with pytest.raises(
        ZooKeeperUnreachable, match=r"\(certificate verify failed.*\): check .* files of zookeeper\.ssl"
    ):
        ZooKeeperConnection(config_of(node.tls, quick, {})).open()
    quick = node.settings | {"zookeeper.connection.timeout.ms": "1000"}
    with pytest.raises(ZooKeeperUnreachable, match="that they are TLS ports"):
        ZooKeeperConnection(config_of(node.plain, quick, {})).open()
    with pytest.raises(ZooKeeperUnreachable, match=r"for a TLS port set zookeeper\.ssl\.client\.enable=true"):
        ZooKeeperConnection(config_of(node.tls, {"zookeeper.connection.timeout.ms": "1000"}, {})).open()


@pytest.mark.parametrize("storage", [{}, {"offsets_storage": "kafka", "dual_commit_enabled": True}])
def test_a_consumer_may_use_tls(harness: GroupHarness, node: TlsNode, tmp_path: Path, storage: dict[str, Any]) -> None:
    harness.put({0: 7})
    with harness.consumer(zookeeper_config=str(node.file(tmp_path)), **storage) as one:
        one.subscribe([harness.topic])
        assert len(read(one, 13)) == 13
        assert harness.owner(0) == harness.owner(1) == f"{harness.ids()[0]}-0"
        one.commit({harness.a: 9, harness.b: 9})
        assert (harness.offset(0), harness.offset(1)) == (9, 9)


def test_the_environment_names_the_file_of_consumers_and_commands(
    harness: GroupHarness, node: TlsNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    harness.put({0: 7, 1: 7})
    monkeypatch.setenv("ODRADEK_ZOOKEEPER_CONFIG", str(node.file(tmp_path)))
    with harness.consumer() as one:
        one.subscribe([harness.topic])
        assert sorted(read(one, 6)) == [7, 7, 8, 8, 9, 9]
    assert run(["zookeeper", "describe", "--group", harness.group, "-z", node.tls]) == 0
    assert harness.topic in capsys.readouterr().out


def test_a_consumer_warns_of_the_certificate_that_does_not_fit(
    harness: GroupHarness, node: TlsNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = node.file(tmp_path, zookeeper_ssl_truststore_location=None)
    with harness.consumer(zookeeper_config=str(file), zookeeper_session_timeout_ms=500) as one:
        one.assign([harness.a])

        def warned() -> list[str]:
            assert one.poll(0.2) == {}
            texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            return [text for text in texts if "(certificate verify failed" in text]

        (text, *_) = eventually(warned, within_s=30)
        assert "\n" not in text
        assert "the files of zookeeper.ssl.*; retrying" in text


def test_a_wrong_file_of_a_consumer_is_refused_at_once(harness: GroupHarness, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    with pytest.raises(ConfigError, match=r"^zookeeper_config .*client\.properties: No such file or directory$"):
        harness.consumer(zookeeper_config=str(file))
    file.write_text("zookeeper.ssl.client.enabled=true\n")
    with pytest.raises(
        ConfigError, match=r"client\.properties, line 1: zookeeper\.ssl\.client\.enabled: not a setting"
    ):
        harness.consumer(zookeeper_config=str(file))
