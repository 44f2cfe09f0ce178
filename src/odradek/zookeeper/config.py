"""Settings of a session: the connect string, timeouts, login and TLS.

A secret is never an argument of a command: it comes from the environment variable ``ODRADEK_ZOOKEEPER_LOGIN``
(``user:password``) or from a properties file, which ``ODRADEK_ZOOKEEPER_CONFIG`` or the caller names.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from odradek.core.errors import ConfigError
from odradek.text.config_providers import read_settings_file
from odradek.zookeeper.layout import name_problem

LOGIN_VARIABLE = "ODRADEK_ZOOKEEPER_LOGIN"
"""``user:password`` for ZooKeeper, if no file has ``zookeeper.login``."""
CONFIG_VARIABLE = "ODRADEK_ZOOKEEPER_CONFIG"
"""A properties file for ZooKeeper, in place of ``--zookeeper-config``."""
_DEFAULT_PORT = 2181
_HOST = re.compile(r"[^\s:/?#@\[\]\\]+|\[[0-9A-Fa-f:.]+\]")

SETTINGS = {
    "zookeeper.connect": "HOST:PORT of one or several nodes, separated by commas, with an optional chroot (/kafka)",
    "zookeeper.session.timeout.ms": "the session timeout (default 6000)",
    "zookeeper.connection.timeout.ms": "the longest wait for a connection and for an answer (default 10000)",
    "zookeeper.login": "user:password for access lists of the scheme digest",
    "zookeeper.ssl.client.enable": "true: connect by TLS",
    "zookeeper.ssl.truststore.location": "a PEM file with the certificates that sign the nodes' certificates",
    "zookeeper.ssl.keystore.location": "a PEM file with the client's certificate and key",
    "zookeeper.ssl.keystore.password": "the password of that key",
    "zookeeper.ssl.endpoint.identification.algorithm": "HTTPS (default): check the nodes' names; empty: no check",
}
"""The settings of a properties file, by Kafka's names where Kafka has them."""


@dataclass(frozen=True)
class TlsSettings:
    """TLS with PEM files.

    ``authorities``: the file with the certificates that sign the nodes' certificates; None: those of the system.
    ``certificate``: the file with the client's certificate and key, or None. ``check_names``: whether a node's name
    has to be in its certificate.
    """

    authorities: str | None = None
    certificate: str | None = None
    key_password: str | None = field(default=None, repr=False)
    check_names: bool = True


@dataclass(frozen=True)
class ZooKeeperConfig:
    """The settings of a session.

    ``hosts``: ``host:port,host:port``. ``chroot``: a path such as ``/kafka`` in front of all paths, or "".
    ``login``: ``user:password``, or None. Times in ms.
    """

    hosts: str
    chroot: str = ""
    session_timeout_ms: int = 6_000
    timeout_ms: int = 10_000
    login: str | None = field(default=None, repr=False)
    tls: TlsSettings | None = None

    @property
    def address(self) -> str:
        """The connect string, for messages."""
        return self.hosts + self.chroot


def file_settings(file: Path | None, source: str, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the settings of a properties file by name.

    The file is ``file``; if this is None, the file that ODRADEK_ZOOKEEPER_CONFIG names. Without both the result is
    empty. ``source``: the option or setting that names ``file``, for messages. Raises ConfigError with file and line.
    """
    if file is None:
        if not environment.get(CONFIG_VARIABLE):
            return {}
        file, source = Path(environment[CONFIG_VARIABLE]), CONFIG_VARIABLE
    settings = read_settings_file(file, source)
    for name, setting in settings.items():
        if name not in SETTINGS:
            raise ConfigError(f"{source} {file}, line {setting.line}: {_unknown(name)}")
    return {name: setting.value for name, setting in settings.items()}


def _unknown(name: str) -> str:
    return f"{name}: not a setting of ZooKeeper; the settings are {', '.join(SETTINGS)}"


def config_of(
    connect: str | None, settings: Mapping[str, str] | None = None, environment: Mapping[str, str] = os.environ
) -> ZooKeeperConfig:
    """Returns the settings of a session. ``connect`` replaces ``zookeeper.connect`` of ``settings``.

    Without ``zookeeper.login``, ODRADEK_ZOOKEEPER_LOGIN is the login. Raises ConfigError for a wrong connect string,
    value or setting."""
    given = dict(settings or {})
    for name in given.keys() - SETTINGS.keys():
        raise ConfigError(_unknown(name))
    hosts, chroot = parse_connect(connect or given.get("zookeeper.connect", ""))
    login = given.get("zookeeper.login") or environment.get(LOGIN_VARIABLE) or None
    if login is not None and (":" not in login or login.startswith(":")):
        raise ConfigError(f"the login of ZooKeeper (zookeeper.login or {LOGIN_VARIABLE}): expected user:password")
    return ZooKeeperConfig(
        hosts,
        chroot,
        _milliseconds(given, "zookeeper.session.timeout.ms", 6_000),
        _milliseconds(given, "zookeeper.connection.timeout.ms", 10_000),
        login,
        _tls(given),
    )


def parse_connect(text: str) -> tuple[str, str]:
    """Splits a connect string into hosts with ports and the chroot ("" for none). Raises ConfigError."""
    if "://" in text:
        raise ConfigError(f"zookeeper.connect {text!r}: expected HOST:PORT without {text.partition('://')[0]}://")
    hosts, slash, rest = text.partition("/")
    if not hosts:
        raise ConfigError("zookeeper.connect: expected HOST:PORT[,HOST:PORT][/CHROOT]")
    chroot = (slash + rest).rstrip("/")
    if "//" in chroot or "," in chroot:
        raise ConfigError(
            f"zookeeper.connect {text!r}: the chroot comes once, after the last host, as in a:2181,b:2181/kafka"
        )
    for problem in filter(None, map(name_problem, chroot.split("/")[1:])):
        raise ConfigError(f"zookeeper.connect {text!r}: no path of ZooKeeper can be like the chroot: {problem}")
    addresses = []
    for host in hosts.split(","):
        name, colon, port = host.strip().rpartition(":")
        if not colon or host.strip().endswith("]"):  # an IPv6 address has colons, too
            name, port = host.strip(), str(_DEFAULT_PORT)
        if (
            not _HOST.fullmatch(name)
            or not name.isprintable()
            or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16)
        ):
            is_number = port.isdigit() and name.isprintable() and _HOST.fullmatch(name) is not None and ":" in host
            why = "a port is a number from 1 to 65535" if is_number else f"{host!r} is not HOST:PORT"
            raise ConfigError(f"zookeeper.connect {text!r}: {why}")
        addresses.append(f"{name}:{port}")
    return ",".join(addresses), chroot


def _milliseconds(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ConfigError(f"{name}: expected milliseconds, a whole number above 0")
    return int(text)


def _tls(given: Mapping[str, str]) -> TlsSettings | None:
    enabled = given.get("zookeeper.ssl.client.enable", "false").lower()
    if enabled not in ("true", "false"):
        raise ConfigError("zookeeper.ssl.client.enable: expected true or false")
    if enabled == "false":
        for name in given:
            if name.startswith("zookeeper.ssl."):
                if name == "zookeeper.ssl.client.enable":
                    continue
                raise ConfigError(f"{name} has no effect without zookeeper.ssl.client.enable=true")
        return None
    for name in ("zookeeper.ssl.truststore.location", "zookeeper.ssl.keystore.location"):
        if name in given and not Path(given[name]).is_file():
            raise ConfigError(f"{name}: there is no such file")
    checked = given.get("zookeeper.ssl.endpoint.identification.algorithm", "HTTPS").upper()
    if checked not in ("HTTPS", ""):
        raise ConfigError("zookeeper.ssl.endpoint.identification.algorithm: expected HTTPS, or nothing after the =")
    made = TlsSettings(
        given.get("zookeeper.ssl.truststore.location"),
        given.get("zookeeper.ssl.keystore.location"),
        given.get("zookeeper.ssl.keystore.password"),
        checked == "HTTPS",
    )
    _check_files(made)
    return made


def _check_files(tls: TlsSettings) -> None:
    """Raises ConfigError for an unreadable file. With such a file, kazoo would try to connect again and again."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.authorities is not None:
        try:
            context.load_verify_locations(tls.authorities)
        except OSError:
            raise ConfigError(
                f"zookeeper.ssl.truststore.location: {tls.authorities} has no certificate in PEM: export those of a "
                "Java keystore with keytool -list -rfc"
            ) from None
    if tls.certificate is not None:
        try:
            context.load_cert_chain(tls.certificate, password=tls.key_password or "")
        except OSError:
            raise ConfigError(
                f"zookeeper.ssl.keystore.location: {tls.certificate} needs a certificate and its key in PEM, and "
                "zookeeper.ssl.keystore.password has to be the password of that key, if it has one"
            ) from None
