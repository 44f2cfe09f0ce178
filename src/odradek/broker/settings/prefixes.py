"""Names of settings with the prefix of a listener, ``listener.name.external.``, and some also with that of a SASL
mechanism, ``listener.name.external.plain.``. Such a setting holds for this listener or mechanism alone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_OF_TLS = """
    ssl.allow.dn.changes ssl.allow.san.changes ssl.cipher.suites ssl.client.auth ssl.enabled.protocols
    ssl.key.password ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.principal.mapping.rules ssl.protocol ssl.truststore.certificates
    ssl.truststore.location ssl.truststore.password ssl.truststore.type
    """
_OF_OAUTH = """
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.server.callback.handler.class
    """
OF_OAUTH = frozenset(_OF_OAUTH.split())
"""Settings of the mechanism OAUTHBEARER."""
OF_LISTENERS = OF_OAUTH | {
    "connections.max.reauth.ms", "sasl.enabled.mechanisms", "sasl.jaas.config", *_OF_TLS.split()
}  # fmt: skip
"""Settings that may have the prefix of a listener."""
OF_MECHANISMS = OF_OAUTH | {"connections.max.reauth.ms", "sasl.jaas.config"}
"""Settings that may also have the prefix of a SASL mechanism."""
PREFIX = "listener.name."
_NAME = re.compile(r"listener\.name\.([^.]+)\.(?:(plain|scram-sha-256|scram-sha-512|oauthbearer|gssapi)\.)?(.+)")


class Scope(NamedTuple):
    """The parts of a name with prefixes. ``mechanism`` is in lower case, and "" without such a prefix."""

    listener: str
    mechanism: str
    base: str


def scope_of(name: str) -> Scope | None:
    """Returns the parts of a name with the prefix of a listener, else None."""
    if not name.startswith(PREFIX):
        return None
    parts = _NAME.fullmatch(name)
    if parts is None:
        return None
    return Scope(parts[1], parts[2] or "", parts[3])


def base_of(name: str) -> str:
    """Returns the name without the prefixes of a listener and a mechanism."""
    scope = scope_of(name)
    return name if scope is None else scope.base
