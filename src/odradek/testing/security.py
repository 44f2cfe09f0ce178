"""The security of a broker for tests: a throw-away authority, a certificate of the broker, one user."""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from pathlib import Path
from typing import NamedTuple

from odradek.core.errors import ConfigError
from odradek.security.protocols import PLAINTEXT, PROTOCOLS

USER = "odradek"
MECHANISM = "SCRAM-SHA-512"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_LIFE = datetime.timedelta(days=30)
_EARLIER = datetime.timedelta(days=1)
"""Certificates begin before now, for clients whose clock is behind."""


class BrokerSecurity(NamedTuple):
    """Settings of the broker and of its clients. ``users``: the file for ``--add-scram``, if the listener has SASL."""

    broker: dict[str, str]
    client: dict[str, str]
    java: dict[str, str]
    users: Path | None

    def __repr__(self) -> str:
        return f"BrokerSecurity({self.client['security.protocol']})"


def make_security(protocol: str, directory: Path, host: str) -> BrokerSecurity:
    """Makes certificates and a password in ``directory``, which only this user can read.

    Raises ConfigError for another protocol than SSL, SASL_PLAINTEXT and SASL_SSL, or without the package cryptography.
    """
    if protocol not in PROTOCOLS or protocol == PLAINTEXT:
        raise ConfigError(f"security: expected {', '.join(PROTOCOLS[1:-1])} or {PROTOCOLS[-1]}, not {protocol!r}")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    broker = {"security.inter.broker.protocol": protocol}
    client = {"security.protocol": protocol}
    java = dict(client)
    users: Path | None = None
    if protocol.endswith("SSL"):
        authority, own = _certificates(directory, host)
        broker |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(own)}
        client |= {"ssl.ca.location": str(authority)}
        java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority)}
    if protocol.startswith("SASL_"):
        password = secrets.token_urlsafe(24)
        users = _private(directory / "users", f"{MECHANISM}=[name={USER},password={password}]\n".encode())
        broker |= {"sasl.enabled.mechanisms": MECHANISM}
        client |= {"sasl.mechanism": MECHANISM, "sasl.username": USER, "sasl.password": password}
        jaas = f'{_SCRAM} required username="{USER}" password="{password}";'
        java |= {"sasl.mechanism": MECHANISM, "sasl.jaas.config": jaas}
    return BrokerSecurity(broker, client, java, users)


def _private(path: Path, data: bytes) -> Path:
    path.touch(0o600)
    path.write_bytes(data)
    return path


def _certificates(directory: Path, host: str) -> tuple[Path, Path]:
    """Makes an authority and a certificate of the broker. Returns the files of the authority and of the broker."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        from odradek.core.extras import command_of

        command = command_of("security")
        raise ConfigError(f"security: certificates need the package cryptography: `{command}`") from error
    from cryptography.hazmat.primitives.hashes import SHA256

    now = datetime.datetime.now(datetime.UTC)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"odradek test {what}")]) for what in ("CA", "broker")]
    hosts: list[x509.GeneralName] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
                                     x509.IPAddress(ipaddress.ip_address("::1"))]  # fmt: skip
    bare = host.strip("[]")
    try:
        hosts.append(x509.IPAddress(ipaddress.ip_address(bare)))
    except ValueError:
        hosts.append(x509.DNSName(bare))
    made = []
    for name, key in zip(names, keys, strict=True):
        is_authority = name is names[0]
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _EARLIER)
            .not_valid_after(now + _LIFE)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(dict.fromkeys(hosts))), critical=False)
        made.append(builder.sign(keys[0], SHA256()).public_bytes(Encoding.PEM))
    own = keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + made[1]
    return _private(directory / "ca.pem", made[0]), _private(directory / "broker.pem", own)
