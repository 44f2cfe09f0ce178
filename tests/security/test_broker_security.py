"""``odradek.Broker(security=…)``: a broker with TLS and a user in one line, and the same for pytest's fixtures."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import odradek
from odradek.core.errors import ConfigError
from odradek.net.errors import AuthenticationFailed


@pytest.mark.parametrize("in_thread", [True, False])
@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_a_secured_broker_in_one_line(protocol: str, in_thread: bool) -> None:
    with odradek.Broker(security=protocol, in_thread=in_thread) as broker:
        broker.create_topic("t")
        with odradek.Admin(broker.client_settings) as admin:
            assert admin.topics() == ["t"]
        with odradek.Admin(dict(broker.java_settings)) as admin:
            assert admin.topics() == ["t"]
        password = broker.client_settings.get("sasl.password")
        assert password is None or password not in repr(broker) + broker.log_tail()
        if not in_thread and password:
            line = Path(f"/proc/{broker.pid}/cmdline")
            assert not line.exists() or password.encode() not in line.read_bytes()
        broker.stop()
        broker.start()
        with odradek.Admin(broker.client_settings) as admin:
            assert admin.topics() == ["t"]


def test_a_client_without_the_password_stays_outside() -> None:
    with odradek.Broker(security="SASL_SSL", in_thread=True) as broker:
        wrong = broker.client_settings | {"sasl.password": "wrong"}
        with odradek.Admin(wrong) as admin, pytest.raises(AuthenticationFailed, match="invalid credentials"):
            admin.topics()


def test_files_with_secrets_are_for_their_owner_alone() -> None:
    with odradek.Broker(security="SASL_SSL", in_thread=True) as broker:
        folder = Path(broker.client_settings["ssl.ca.location"]).parent
        found = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
        assert found.pop(folder) == 0o700
        assert set(found.values()) == {0o600}
        assert len(found) == 3
        assert stat.S_IMODE(os.stat(broker.data_dir).st_mode) == 0o700
    assert not folder.exists()


def test_a_broker_with_logins_closes_its_directory_to_others(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with odradek.Broker(data) as broker:
        broker.create_topic("t")
    data.chmod(0o755)
    with odradek.Broker(data, security="SASL_PLAINTEXT") as broker:
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        broker.create_topic("t2")
        made = [path for path in data.rglob("*") if path.name == "login.key" or path.parent.name.startswith("t2-")]
        assert len(made) > 1
        assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in made} == {0}
        assert "only its owner can enter it now" in broker.log_tail()


def test_settings_may_add_to_the_security() -> None:
    config = {
        "listener.name.sasl_ssl.connections.max.reauth.ms": 60_000,
        "listener.name.sasl_ssl.ssl.client.auth": "none",
    }
    with (
        odradek.Broker(security="SASL_SSL", config=config, in_thread=True) as broker,
        odradek.Admin(broker.client_settings) as admin,
    ):
        assert admin.topics() == []


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ConfigError, match="security: expected SSL, SASL_PLAINTEXT or SASL_SSL, not 'TLS'"):
        odradek.Broker(security="TLS")


def test_the_fixtures_of_pytest_have_a_secured_broker(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nodradek_security = SASL_SSL\n")
    (tmp_path / "test_it.py").write_text(
        "def test_it(odradek_broker, odradek_topic, odradek_producer, odradek_consumer):\n"
        "    assert odradek_broker.client_settings['security.protocol'] == 'SASL_SSL'\n"
        "    odradek_producer.send(odradek_topic, value=b'1')\n"
        "    odradek_producer.flush()\n"
        "    for _ in range(100):\n"
        "        if [one.value for one in odradek_consumer.poll(0.2).records()] == [b'1']:\n"
        "            return\n"
        "    raise AssertionError\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
