"""Security settings of a client: those of Java's clients, and librdkafka's names for the same.

A setting that would protect the connection is never ignored: if the chosen protocol or mechanism does not use it, it is
refused, with the setting that would use it.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping

from odradek.client.other_names import SETTINGS
from odradek.client.settings.java_settings import asks_for_nothing, java_defaults
from odradek.core.errors import ConfigError
from odradek.security.client_security import (
    MECHANISMS,
    NO_SECURITY,
    OAUTHBEARER,
    ClientSecurity,
    Login,
    TokenSource,
)
from odradek.security.jaas import read_jaas
from odradek.security.protocols import HASHES, PLAINTEXT, PROTOCOLS
from odradek.security.secret import Secret
from odradek.security.stores import Store, Tls
from odradek.text.similar_names import nearest

_MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": tuple(HASHES),
    "OAuthBearerLoginModule": (OAUTHBEARER,),
}
_CHECKS = "enable_ssl_certificate_verification"
WITH_EFFECT = frozenset({
    "sasl_jaas_config", "sasl_login_connect_timeout_ms", "sasl_login_read_timeout_ms", "sasl_mechanism",
    "sasl_mechanisms", "sasl_oauthbearer_client_credentials_client_id",
    "sasl_oauthbearer_client_credentials_client_secret", "sasl_oauthbearer_header_urlencode",
    "sasl_oauthbearer_scope", "sasl_oauthbearer_token_endpoint_url", "sasl_password", "sasl_username",
    "security_protocol", "ssl_ca_location", "ssl_ca_pem", "ssl_certificate_location", "ssl_certificate_pem",
    "ssl_cipher_suites", "ssl_enabled_protocols", "ssl_endpoint_identification_algorithm", "ssl_key_location",
    "ssl_key_password", "ssl_key_pem", "ssl_keystore_certificate_chain", "ssl_keystore_key", "ssl_keystore_location",
    "ssl_keystore_password", "ssl_keystore_type", "ssl_protocol", "ssl_truststore_certificates",
    "ssl_truststore_location", "ssl_truststore_password", "ssl_truststore_type", _CHECKS,
})  # fmt: skip
"""The settings that this module reads. Others are times and switches of mechanisms, or are refused."""
_LOGIN_EXTENSION = "extension_"


def split_security(settings: Mapping[str, object]) -> tuple[ClientSecurity, dict[str, object]]:
    """Splits settings, by names with dots or underscores, into those of security and the others. Raises ConfigError.

    Without ``security.protocol``, or with PLAINTEXT, all settings are others."""
    given = _Given(settings)
    protocol = given.text("security_protocol").upper() or PLAINTEXT
    if protocol not in PROTOCOLS:
        raise ConfigError(f"security.protocol: expected {', '.join(PROTOCOLS)}, not {protocol!r}")
    if protocol == PLAINTEXT:
        return NO_SECURITY, dict(settings)
    has_sasl, has_tls = protocol.startswith("SASL_"), protocol.endswith("SSL")
    given.refuse_unused(has_sasl=has_sasl, has_tls=has_tls, protocol=protocol)
    tls = _tls(given) if has_tls else None
    mechanism = ""
    login: Login | TokenSource | None = None
    if has_sasl:
        mechanism = _mechanism(given)
    given.refuse_unknown()  # first, because a token's address may be a setting of a class that is not here
    if has_sasl:
        login = _token_source(given) if mechanism == OAUTHBEARER else _login(given, mechanism)
    return ClientSecurity(protocol, tls, mechanism, login), given.others


class _Given:
    """The security settings of a client, by names with underscores, and the other settings."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self.others: dict[str, object] = {}
        self._values: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for name, value in settings.items():
            key = name.replace(".", "_")
            if not key.startswith(("ssl_", "sasl_", "security_")) and key != _CHECKS:
                self.others[name] = value
                continue
            if key in self._values:
                raise ConfigError(f"{name} is set twice")
            self._values[key] = ",".join(map(str, value)) if isinstance(value, list | tuple) else _as_text(name, value)
            self._names[key] = name

    def has(self, key: str) -> bool:
        """Returns whether the setting is given, even if it is empty."""
        return key in self._values

    def text(self, key: str, *others: str) -> str:
        """Returns the setting's text without spaces around it, by its name or by one of its other names; else ''."""
        for one in (key, *others):
            if value := self._values.get(one, "").strip():
                return value
        return ""

    def secret(self, key: str, *others: str) -> Secret:
        """Returns a secret as it stands, with spaces."""
        return Secret(next((value for one in (key, *others) if (value := self._values.get(one, ""))), ""))

    def name(self, *keys: str) -> str:
        """Returns the name, as it was given, of the first of these settings that has a value."""
        return next((self._names[key] for key in keys if self.text(key)), keys[0].replace("_", "."))

    def number(self, key: str, default: int) -> int:
        text = self.text(key)
        if text and not (text.isascii() and text.isdigit()):
            raise ConfigError(f"{self.name(key)}: expected a whole number")
        return int(text or default)

    def flag(self, key: str, default: bool) -> bool:
        text = self.text(key).lower()
        if text not in ("", "true", "false"):
            raise ConfigError(f"{self.name(key)}: expected true or false, not {text!r}")
        return default if not text else text == "true"

    def refuse_unused(self, *, has_sasl: bool, has_tls: bool, protocol: str) -> None:
        """Raises ConfigError for a setting that would protect the connection, but belongs to another protocol."""
        for key, value in self._values.items():
            is_unused = (key.startswith("sasl_") and not has_sasl) or (
                (key.startswith("ssl_") or key == _CHECKS) and not has_tls
            )
            if is_unused and not asks_for_nothing(key, value, is_plain=False):
                right = "SASL_SSL" if has_sasl or has_tls else protocol
                raise ConfigError(
                    f"{self._names[key]}: security.protocol={protocol} does not use it: set it to {right}, or leave "
                    f"{self._names[key]} out"
                )

    def refuse_unknown(self) -> None:
        """Raises ConfigError for a setting that has no effect here, although it is not Java's default."""
        for key, value in self._values.items():
            if key not in WITH_EFFECT and not asks_for_nothing(key, value, is_plain=False):
                if key in SETTINGS:
                    raise ConfigError(f"setting {self._names[key]}: {SETTINGS[key]}")
                known = (
                    "is not supported: leave it out" if key in java_defaults() else "is no setting of Kafka's clients"
                )
                raise ConfigError(f"{self._names[key]} {known}{nearest(key, WITH_EFFECT)}")


def _as_text(name: str, value: object) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, bool):
        return str(value).lower()
    if value is not None and not isinstance(value, str | int):
        raise ConfigError(f"{name}: expected text")
    return "" if value is None else str(value)


# --- TLS ------------------------------------------------------------------------------------------------------------


def _tls(given: _Given) -> Tls:
    algorithm = given.text("ssl_endpoint_identification_algorithm").lower()
    if algorithm not in ("", "https", "none"):
        raise ConfigError("ssl.endpoint.identification.algorithm: expected https, or nothing to check no host names")
    is_off = algorithm == "none" or (given.has("ssl_endpoint_identification_algorithm") and not algorithm)
    versions = _list(given.text("ssl_enabled_protocols"))
    only = given.text("ssl_protocol")
    if only and not versions:
        versions = ("TLSv1.2",) if only == "TLSv1.2" else ("TLSv1.2", "TLSv1.3")
    return Tls(
        trust=_trust_store(given),
        key=_key_store(given),
        versions=versions or ("TLSv1.2", "TLSv1.3"),
        ciphers=_list(given.text("ssl_cipher_suites")),
        checks_names=not is_off,
        checks_certificates=given.flag(_CHECKS, True),
    )


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _trust_store(given: _Given) -> Store | None:
    name = "ssl.truststore"
    if text := given.text("ssl_ca_pem"):
        return Store("ssl.ca.pem", "PEM", text=Secret(text))
    if path := given.text("ssl_ca_location"):
        return None if path == "probe" else Store("ssl.ca", "PEM", path)  # probe: the system's, as in librdkafka
    kind = given.text("ssl_truststore_type") or "JKS"
    if text := given.text("ssl_truststore_certificates"):
        return Store(name, kind, text=Secret(text))
    path = given.text("ssl_truststore_location")
    return Store(name, kind, path, given.secret("ssl_truststore_password")) if path else None


def _key_store(given: _Given) -> Store | None:
    key_password = given.secret("ssl_key_password")
    path, key_path = given.text("ssl_certificate_location"), given.text("ssl_key_location")
    text, key_text = given.text("ssl_certificate_pem"), given.secret("ssl_key_pem")
    if path or key_path or text or key_text:
        return Store(
            "ssl.certificate", "PEM", key_password=key_password,
            text=Secret(text or _file(path, "ssl.certificate.location")),
            key_text=key_text or Secret(_file(key_path, "ssl.key.location")),
        )  # fmt: skip
    kind = given.text("ssl_keystore_type") or "JKS"
    chain, key = given.text("ssl_keystore_certificate_chain"), given.secret("ssl_keystore_key")
    if chain or key:
        return Store("ssl.keystore", kind, key_password=key_password, text=Secret(chain), key_text=key)
    path = given.text("ssl_keystore_location")
    return Store("ssl.keystore", kind, path, given.secret("ssl_keystore_password"), key_password) if path else None


def _file(path: str, name: str) -> str:
    """Returns the text of a file that librdkafka's settings name. Raises ConfigError."""
    if not path:
        raise ConfigError(f"{name} is needed, too: a certificate and its key belong together")
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} {path}: it is not a PEM file") from error
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror}") from error


# --- SASL -----------------------------------------------------------------------------------------------------------


def _mechanism(given: _Given) -> str:
    mechanism = given.text("sasl_mechanism", "sasl_mechanisms").upper()
    name = given.name("sasl_mechanism", "sasl_mechanisms")
    if not mechanism or mechanism == "GSSAPI":
        reason = "GSSAPI (Kerberos) is not supported" if mechanism else "it is not set, and Java's default is GSSAPI"
        raise ConfigError(f"{name}: {reason}: choose {', '.join(MECHANISMS)}")
    if mechanism not in MECHANISMS:
        raise ConfigError(f"{name}: expected {', '.join(MECHANISMS)}, not {mechanism!r}")
    return mechanism


def _options(given: _Given, mechanism: str) -> Mapping[str, str]:
    """Returns the options of ``sasl.jaas.config``. Raises ConfigError if its module is that of another mechanism."""
    text = given.secret("sasl_jaas_config")
    if not text:
        return {}
    module = read_jaas(text.reveal())
    if mechanism not in _MODULES.get(module.name, ()):
        right = next(name for name, mechanisms in _MODULES.items() if mechanism in mechanisms)
        raise ConfigError(f"sasl.jaas.config: {mechanism} needs {right}, not {module.name}")
    return module.options


def _login(given: _Given, mechanism: str) -> Login:
    options = _options(given, mechanism)
    user = given.text("sasl_username") or options.get("username", "")
    password = given.secret("sasl_password") or Secret(options.get("password", ""))
    if not user or not password:
        missing = "user name" if not user else "password"
        raise ConfigError(f"{mechanism} needs a {missing}: set sasl.jaas.config, or sasl.username and sasl.password")
    is_token = options.get("tokenauth", "").lower() == "true"
    if is_token and mechanism not in HASHES:
        raise ConfigError(f"sasl.jaas.config: tokenauth needs SCRAM, not {mechanism}")
    return Login(user, password, is_token)


def _is_address(url: str) -> bool:
    """Whether tokens can come from there: a file, or an http or https address with a host and a valid port."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_provider = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or brackets without an address
        return False
    return (is_provider or parts.scheme == "file") and url.isprintable() and " " not in url


def _token_source(given: _Given) -> TokenSource:
    options = _options(given, OAUTHBEARER)
    url = given.text("sasl_oauthbearer_token_endpoint_url")
    if not _is_address(url):
        raise ConfigError(
            "sasl.oauthbearer.token.endpoint.url: expected file:///PATH, or the http or https address of an identity "
            "provider's token endpoint"
        )
    extensions = tuple(
        (name.removeprefix(_LOGIN_EXTENSION), value)
        for name, value in options.items()
        if name.startswith(_LOGIN_EXTENSION)
    )
    source = TokenSource(
        url,
        given.text("sasl_oauthbearer_client_credentials_client_id") or options.get("clientId", ""),
        given.secret("sasl_oauthbearer_client_credentials_client_secret") or Secret(options.get("clientSecret", "")),
        given.text("sasl_oauthbearer_scope") or options.get("scope", ""),
        extensions,
        given.number("sasl_login_connect_timeout_ms", 10_000),
        given.number("sasl_login_read_timeout_ms", 10_000),
        given.flag("sasl_oauthbearer_header_urlencode", False),
        _provider_tls(options) if url.startswith("https:") else None,
    )
    if not url.startswith("file:") and not (source.client_id and source.client_secret):
        raise ConfigError(
            "OAUTHBEARER needs the client's id and secret: set sasl.oauthbearer.client.credentials.client.id and "
            "sasl.oauthbearer.client.credentials.client.secret"
        )
    return source


def _provider_tls(options: Mapping[str, str]) -> Tls:
    """TLS to the identity provider: the ``ssl.`` options of the login module, as in Java."""
    own: dict[str, object] = {name: value for name, value in options.items() if name.startswith("ssl.")}
    return _tls(_Given(own))
