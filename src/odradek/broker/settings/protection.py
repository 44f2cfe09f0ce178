"""The settings that protect a broker or its data: those of the authorizer, and those that this broker refuses.

The broker lacks the features of some of Kafka's settings. It must not accept and ignore such a setting: an operator
would rely on it. Therefore the start, AlterConfigs and IncrementalAlterConfigs refuse it. They accept Kafka's default,
and values that protect nothing in Kafka either: an empty value of a setting without a default, and the times, sizes and
switches of a mechanism, which another setting would have to select. ``listeners`` checks the settings of the
protections that the broker has. The other settings of ``ignored`` concern speed, sizes or missing features; a broker
without them is as safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from odradek.broker.settings.keys import ConfigType, authorizer_keys, inert_broker_keys
from odradek.broker.settings.prefixes import scope_of
from odradek.core.errors import ConfigError

AUTHORIZER = "authorizer.class.name"
STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
AUTHORIZERS = {STANDARD_AUTHORIZER: "standard_authorizer:StandardAuthorizer"}
"""By the name of its class in Kafka: the module in ``broker/metadata`` of an authorizer, and its class there, which
``metadata/authorizer`` describes. Its ``of`` makes it from the settings."""


class Protection(NamedTuple):
    """A protection that this broker does not have.

    ``lack``: what the broker cannot do. ``remedy``: what an operator can do. ``names``: the settings that need the
    protection.
    """

    lack: str
    remedy: str
    names: str


_CLOSED_PORT = "allow only fully trusted hosts to reach the port"
_WITHOUT = f"leave it out, and {_CLOSED_PORT}"
PROTECTIONS = (
    Protection(
        "this broker has no such part of TLS",
        _WITHOUT,
        """
        security.providers ssl.endpoint.identification.algorithm ssl.engine.factory.class
        ssl.keymanager.algorithm ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
        """,
    ),
    Protection(
        "this broker has no such login",
        _WITHOUT,
        """
        principal.builder.class
        sasl.kerberos.min.time.before.relogin
        sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
        sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
        sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
        sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
        sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
        sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
        sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
        sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file
        sasl.oauthbearer.assertion.private.key.file sasl.oauthbearer.assertion.private.key.passphrase
        sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
        sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.jwt.retriever.class
        sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope sasl.oauthbearer.token.endpoint.url
        """,
    ),
    Protection(
        "no authorizer is set",
        f"set {AUTHORIZER}={STANDARD_AUTHORIZER}, or leave it out",
        "allow.everyone.if.no.acl.found super.users",
    ),
    Protection(
        "this broker opens its listeners together, after its ACLs are read",
        "leave it out",
        "early.start.listeners",
    ),
    Protection(
        "this broker loads no policy classes, so all clients can create topics and change settings",
        _WITHOUT,
        "alter.config.policy.class.name create.topic.policy.class.name",
    ),
    Protection(
        "this broker loads no quota classes",
        "leave it out, and set quotas by user, client id or address with AlterClientQuotas (kafka-configs)",
        "client.quota.callback.class",
    ),
    Protection(
        "this broker has no limit on the total of new connections per second",
        "leave it out, and set the quota connection_creation_rate for addresses with AlterClientQuotas (kafka-configs)",
        "max.connection.creation.rate",
    ),
    Protection(
        "this broker has no tiered storage, so it makes no second copy of records",
        "leave it out, and keep a copy of the data directory or mirror its topics to another cluster",
        "remote.log.storage.system.enable",
    ),
)

# A time, size, share or switch with one of these names belongs to TLS, to a SASL mechanism, to delegation tokens or to
# an authorizer. It has no effect until another setting selects that mechanism, and this broker refuses that setting.
_MECHANISMS = (
    "sasl.", "ssl.", "delegation.token.", "connection.failed.authentication.", "connections.max.reauth.",
    "allow.everyone.if.no.acl.found",
)  # fmt: skip
# An empty value lets a broker connect to brokers whose certificates have other names. This one connects to none.
_NAMES_OF_BROKERS = "ssl.endpoint.identification.algorithm"
_MEASURES = (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT, ConfigType.DOUBLE, ConfigType.BOOLEAN)
# Kafka's defaults of settings whose default in ``ignored`` is empty, because this broker has no such classes.
_CLASSES = {
    "principal.builder.class": "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
    "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever",
    "sasl.oauthbearer.jwt.validator.class": "org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator",
}


@cache
def protections_by_setting() -> dict[str, Protection]:
    """Returns the protection that each setting needs."""
    return {name: protection for protection in PROTECTIONS for name in protection.names.split()}


def check_authorizer(texts: Mapping[str, str]) -> None:
    """Raises ConfigError if the authorizer is unknown or a super user is no principal."""
    name = texts.get(AUTHORIZER, "").strip()
    if name and name not in AUTHORIZERS:
        raise ConfigError(
            f"{AUTHORIZER}: this broker has no class {name!r}; set {' or '.join(AUTHORIZERS)} or leave it out"
        )
    super_users(texts)


def super_users(texts: Mapping[str, str]) -> list[str]:
    """Returns the principals of ``super.users``. Raises ConfigError."""
    users = [part.strip() for part in texts.get("super.users", "").split(";") if part.strip()]
    for user in users:
        if ":" not in user:
            raise ConfigError(f"super.users: {user!r} is no principal; write kind:name, as in User:admin")
    return users


def allows_unlisted(texts: Mapping[str, str]) -> bool:
    """Returns whether all clients may use a resource that no ACL names."""
    return texts.get("allow.everyone.if.no.acl.found", "").strip().lower() == "true"


def check(texts: Mapping[str, str]) -> None:
    """Raises ConfigError, with a text of one line, if a setting needs a protection that this broker lacks."""
    refused: dict[Protection, list[str]] = {}
    for name, text in texts.items():
        protection = _find_protection(name, text, texts)
        if protection is not None:
            refused.setdefault(protection, []).append(name)
    for protection, names in refused.items():
        raise ConfigError(f"{', '.join(names)}: {protection.lack}, so it would protect nothing; {protection.remedy}")


def _find_protection(name: str, text: str, texts: Mapping[str, str]) -> Protection | None:
    if scope := scope_of(name):
        name = scope.base
    if name in authorizer_keys() and texts.get(AUTHORIZER, "").strip():
        return None
    protection = protections_by_setting().get(name)
    return None if protection is None or _is_default(name, text) else protection


def _is_default(name: str, text: str) -> bool:
    """Returns whether a value is Kafka's default, or protects nothing.

    An empty value of a setting without a default protects nothing. The same is true for the times and sizes of
    mechanisms that are not there.

    Raises ConfigError for an invalid value.
    """
    key = inert_broker_keys().get(name) or authorizer_keys().get(name)
    if key is None:
        return False
    if name == _NAMES_OF_BROKERS and not text.strip():
        return True
    value = key.parse(text)
    if key.type in _MEASURES and name.startswith(_MECHANISMS):
        return True
    if not key.default:
        return not text.strip() or text.strip() == _CLASSES.get(name)
    return bool(value == key.parse(key.default))
