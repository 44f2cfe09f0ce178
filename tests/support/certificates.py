"""A certificate authority for tests: certificates of brokers and clients, good and bad, as PEM and PKCS12 files."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

PASSWORD = "store-secret"
LOCAL = ("localhost", "127.0.0.1")
_DAY = datetime.timedelta(days=1)


def _name(text: str) -> x509.Name:
    return x509.Name([
        x509.NameAttribute(NameOID.COMMON_NAME, text),
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Tests"),
    ])  # fmt: skip


class Authority:
    """An authority whose certificates are in ``directory``: ``ca.pem``, ``NAME.pem`` (key and chain), ``NAME.p12``."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.datetime.now(datetime.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.pem = directory / "ca.pem"
        self.pem.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        self.p12 = directory / "ca.p12"
        self.p12.write_bytes(_trust_store([self.certificate]))

    def issue(self, name: str, hosts: Sequence[str] = LOCAL, *, expired: bool = False, subject: str = "") -> Path:
        """Makes a certificate. Returns the PEM file with its key and itself. ``subject``: by default ``name``."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        begin, end = (now - 3 * _DAY, now - _DAY) if expired else (now - _DAY, now + 30 * _DAY)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(subject or name))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
        )
        if hosts:
            alternatives = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
            builder = builder.add_extension(alternatives, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        secret = BestAvailableEncryption(PASSWORD.encode())
        hidden = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, secret)
        own = certificate.public_bytes(Encoding.PEM)
        (self.directory / f"{name}-encrypted.pem").write_bytes(hidden + own)
        (self.directory / f"{name}-key.pem").write_bytes(plain)
        (self.directory / f"{name}-certificate.pem").write_bytes(own)
        (self.directory / f"{name}.p12").write_bytes(
            pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [self.certificate], secret)
        )
        path = self.directory / f"{name}.pem"
        path.write_bytes(plain + own)
        return path


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _trust_store(certificates: list[x509.Certificate]) -> bytes:
    """Java reads trusted certificates only if the file marks them as such."""
    entries = [pkcs12.PKCS12Certificate(one, f"ca{number}".encode()) for number, one in enumerate(certificates)]
    return pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(PASSWORD.encode()))
