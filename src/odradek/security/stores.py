"""Certificates and keys from PEM texts, PEM files and PKCS12 files, and the TLS contexts made of them.

PKCS12 needs the package cryptography (``pip install 'odradek[security]'``). A JKS file is refused with the command that
converts it. A private key is passed to OpenSSL through a file in memory where the system has one (Linux), else through
a file that only its owner can read, which is removed at once.
"""

from __future__ import annotations

import os
import re
import ssl
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from odradek.core.errors import ConfigError
from odradek.core.extras import command_of
from odradek.security.secret import Secret

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_KEY = re.compile(r"-----BEGIN (?:\w+ )*PRIVATE KEY-----.*?-----END (?:\w+ )*PRIVATE KEY-----", re.DOTALL)
_JKS, _JCEKS, _DER = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce", b"\x30"
_MOST_BYTES = 16 << 20
VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class Store(NamedTuple):
    """A key store or trust store, as the settings describe it. ``kind``: PEM, PKCS12 or JKS (Java's default).

    ``name`` is that of the settings: ``ssl.keystore`` or ``ssl.truststore``. ``text``, ``key_text``: PEM in the
    settings themselves; ``text`` is hidden, too, because people paste a key beside its certificate. Java reads PKCS12
    files as JKS, too, so the bytes of a file decide between the two.
    """

    name: str
    kind: str = "JKS"
    location: str = ""
    password: Secret = Secret("")
    key_password: Secret = Secret("")
    text: Secret = Secret("")
    key_text: Secret = Secret("")


class Tls(NamedTuple):
    """The TLS settings of a client."""

    trust: Store | None = None
    key: Store | None = None
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()
    checks_names: bool = True
    checks_certificates: bool = True


class ServerTls(NamedTuple):
    """The TLS settings of a broker's listener. ``client_auth``: none, requested or required."""

    trust: Store | None
    key: Store
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] = ()
    client_auth: str = "none"


class _Entries(NamedTuple):
    """The contents of a store: PEM certificates, and a PEM key with its password."""

    certificates: tuple[str, ...]
    key: Secret = Secret("")
    password: Secret = Secret("")


def state_of_files(*stores: Store | None) -> tuple[object, ...]:
    """Returns what changes when a store's file is replaced: the time, size and number of each file."""
    return tuple(map(_state_of_file, stores))


def _state_of_file(store: Store | None) -> tuple[int, int, int] | None:
    if store is None or not store.location:
        return None
    try:
        status = Path(store.location).stat()
    except OSError:
        return None  # reading it reports the error
    return status.st_mtime_ns, status.st_size, status.st_ino


def client_context(tls: Tls) -> ssl.SSLContext:
    """Returns the context of a client's connections. Raises ConfigError, which names the setting and the file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.checks_names and tls.checks_certificates
    context.hostname_checks_common_name = True  # as in Java, of a certificate without a DNS name, and for no address
    if not tls.checks_certificates:
        context.verify_mode = ssl.CERT_NONE
    _limit(context, tls)
    if tls.trust is None:
        context.load_default_certs()
    else:
        _trust(context, tls.trust)
    if tls.key is not None:
        _load_key(context, tls.key)
    return context


class RenewableContext:
    """The context of a client's connections. When a file of its stores is replaced, later connections get a new one."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._made: tuple[tuple[object, ...], ssl.SSLContext] | None = None

    def current(self) -> ssl.SSLContext:
        """Raises ConfigError, as ``client_context``."""
        state = state_of_files(self._tls.trust, self._tls.key)
        if self._made is None or self._made[0] != state:
            self._made = state, client_context(self._tls)
        return self._made[1]


def server_context(tls: ServerTls) -> ssl.SSLContext:
    """Returns the context of a listener. Raises ConfigError, which names the setting and the file.

    It issues no tickets, and a client cannot ask for another handshake on a connection. A session of TLS 1.2 may be
    resumed by its id, with the certificate that the client showed before."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    _limit(context, tls)
    if tls.client_auth != "none":
        context.verify_mode = ssl.CERT_REQUIRED if tls.client_auth == "required" else ssl.CERT_OPTIONAL
        # Java trusts each certificate of the store, also one that another authority has signed.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if tls.trust is not None:
        _trust(context, tls.trust)
    _load_key(context, tls.key)
    return context


def _trust(context: ssl.SSLContext, store: Store) -> None:
    """Loads the certificates of a trust store. Raises ConfigError."""
    if store.name == "ssl.ca" and Path(store.location).is_dir():  # librdkafka's, with the names of `openssl rehash`
        context.load_verify_locations(capath=store.location)
        return
    certificates = _entries(store).certificates
    if not certificates:
        raise ConfigError(f"{_where(store)}: it has no certificate")
    for certificate in certificates:
        try:
            context.load_verify_locations(cadata=certificate)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"{_where(store)}: a certificate cannot be read: {_reason(error)}") from error


def _limit(context: ssl.SSLContext, tls: Tls | ServerTls) -> None:
    """Sets versions and cipher suites. Raises ConfigError."""
    unknown = [version for version in tls.versions if version not in VERSIONS]
    if unknown or not tls.versions:
        raise ConfigError(f"ssl.enabled.protocols: {' and '.join(VERSIONS)} are supported, not {', '.join(unknown)!r}")
    allowed = sorted(VERSIONS[version] for version in tls.versions)
    context.minimum_version, context.maximum_version = allowed[0], allowed[-1]
    if not tls.ciphers:
        return
    old = [name for name in tls.ciphers if "_WITH_" in name]
    if len(old) < len(tls.ciphers) or ssl.TLSVersion.TLSv1_3 in allowed:
        raise ConfigError(
            "ssl.cipher.suites: the suites of TLS 1.3 cannot be chosen here: name suites of TLS 1.2 alone, with "
            "ssl.enabled.protocols=TLSv1.2"
        )
    try:
        context.set_ciphers(":".join(map(openssl_name, old)))
    except ssl.SSLError as error:
        raise ConfigError(f"ssl.cipher.suites: OpenSSL knows none of {', '.join(old)}") from error


def openssl_name(suite: str) -> str:
    """Returns OpenSSL's name of a TLS 1.2 suite: ``ECDHE-RSA-AES128-GCM-SHA256`` for Java's
    ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256``."""
    exchange, _, cipher = suite.partition("_WITH_")
    exchange = exchange.removeprefix("TLS_").replace("_", "-")
    cipher = re.sub(r"_CBC_(SHA\d*)$", r"_\1", cipher).replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    cipher = re.sub(r"(AES|CAMELLIA|ARIA)_(\d+)", r"\1\2", cipher).replace("_", "-")
    return cipher if exchange == "RSA" else f"{exchange}-{cipher}"


def _load_key(context: ssl.SSLContext, store: Store) -> None:
    entries = _entries(store)
    if not entries.key or not entries.certificates:
        raise ConfigError(f"{_where(store)}: it has no {'certificate' if entries.key else 'private key'}")
    pem = "\n".join([entries.key.reveal(), *entries.certificates, ""])
    password = entries.password.reveal()
    try:
        with _private_file(pem.encode()) as path:
            context.load_cert_chain(path, password=lambda: password)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{_where(store)}: {_key_fault(error, has_password=bool(password))}") from error


def _key_fault(error: Exception, *, has_password: bool) -> str:
    """Returns what is wrong with a private key, and the remedy."""
    reason = _reason(error)
    if "values mismatch" in reason or "type mismatch" in reason:
        return "the private key does not belong to the first certificate: take both from the same order"
    if has_password:
        return "the private key cannot be read: ssl.key.password is wrong, or the key is damaged"
    return f"the private key cannot be read: {reason} (an encrypted key needs ssl.key.password)"


def own_certificate(store: Store) -> bytes:
    """Returns the certificate of the private key of a store, in DER. Raises ConfigError."""
    certificates = _entries(store).certificates
    if not certificates:
        raise ConfigError(f"{_where(store)}: it has no certificate")
    return ssl.PEM_cert_to_DER_cert(certificates[0])


@contextmanager
def _private_file(data: bytes) -> Iterator[str]:
    """Yields the name of a file with this content, which no other user can read and which does not stay."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("odradek-key", os.MFD_CLOEXEC)
        try:
            os.write(number, data)
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    import tempfile

    number, path = tempfile.mkstemp(prefix="odradek-key-")  # mode 0600
    try:
        os.write(number, data)
        os.close(number)
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


# --- reading --------------------------------------------------------------------------------------------------------


def _entries(store: Store) -> _Entries:
    """Reads a store. Raises ConfigError."""
    kind = store.kind.upper()
    if store.text or store.key_text:
        if kind != "PEM":
            raise ConfigError(f"{store.name}.type: a store in the settings themselves needs PEM, not {store.kind}")
        text, chain = store.text.reveal(), f"{store.name}.certificate.chain"
        if store.name.endswith("ssl.keystore") and _KEY.search(text):
            raise ConfigError(f"{chain}: it has a private key, and Java reads none there: move it to {store.name}.key")
        return _pem(store, text + "\n" + store.key_text.reveal())
    data = _read(store)
    if data[:4] in (_JKS, _JCEKS):
        target = Path(store.location).with_suffix(".p12").name
        raise ConfigError(
            f"{_where(store)}: JKS is not supported: convert it with `keytool -importkeystore -srckeystore "
            f"{Path(store.location).name} -destkeystore {target} -deststoretype PKCS12`, and set {store.name}.location "
            f"to {target} and {store.name}.type to PKCS12"
        )
    if kind == "PEM":
        try:
            return _pem(store, data.decode())
        except UnicodeDecodeError as error:
            raise ConfigError(f"{_where(store)}: it is not a PEM file") from error
    if kind not in ("JKS", "PKCS12"):
        raise ConfigError(f"{store.name}.type: PEM and PKCS12 are supported, not {store.kind}")
    if b"-----BEGIN" in data:
        raise ConfigError(f"{_where(store)}: it is a PEM file: set {store.name}.type=PEM")
    if data[:1] != _DER:
        raise ConfigError(f"{_where(store)}: it is not a PKCS12 file")
    return _pkcs12(store, data)


def _read(store: Store) -> bytes:
    try:
        with Path(store.location).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{_where(store)}: {error.strerror or error}") from error
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"{_where(store)}: it is larger than {_MOST_BYTES >> 20} MiB, so it is no key store")
    return data


def _pem(store: Store, text: str) -> _Entries:
    certificates = tuple(_CERTIFICATE.findall(text))
    keys = list(dict.fromkeys(match[0] for match in _KEY.finditer(text)))  # librdkafka's two files may be the same one
    if not certificates and not keys:
        raise ConfigError(f"{_where(store)}: it has neither a certificate nor a private key in PEM")
    if len(keys) > 1:
        raise ConfigError(f"{_where(store)}: it has {len(keys)} private keys; one is expected")
    return _Entries(certificates, Secret(keys[0] if keys else ""), store.key_password)


def _pkcs12(store: Store, data: bytes) -> _Entries:
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError as error:
        raise ConfigError(
            f"{_where(store)}: PKCS12 needs the package cryptography: `{command_of('security')}`, or use PEM"
        ) from error
    try:
        content = pkcs12.load_pkcs12(data, store.password.reveal().encode())
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{_where(store)}: it is damaged, or {store.name}.password is wrong") from error
    certificates = [item.certificate for item in (content.cert, *content.additional_certs) if item is not None]
    key = ""
    if content.key is not None:
        key = content.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    pem = tuple(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)
    return _Entries(pem, Secret(key))


def _where(store: Store) -> str:
    return f"{store.name}.location {store.location}" if store.location else store.name


def _reason(error: Exception) -> str:
    """Returns OpenSSL's words without its numbers and source lines: ``key values mismatch``."""
    reason = getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()


def unprotected_host(url: str) -> str:
    """Returns the host of an address with ``http`` that is not this machine; "" for any other address.

    Others on the network can read and replace the messages of such an address: it has no TLS.
    """
    from ipaddress import ip_address  # TLS alone does not need it

    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "http" or host == "localhost":
        return ""
    try:
        return "" if ip_address(host).is_loopback else host
    except ValueError:  # a name
        return host
