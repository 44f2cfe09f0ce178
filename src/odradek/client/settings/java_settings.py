"""Settings of Java's clients that ask for nothing that our clients lack: they are accepted, without an effect.

Such settings are in nearly every client file: ``security.protocol=PLAINTEXT``, or an empty
``ssl.endpoint.identification.algorithm``. A setting that would protect the connection is never ignored, because a user
would rely on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

_PROTOCOL = "security_protocol"
_SECURE = ("ssl_", "sasl_", "security_providers")
_BYTES = "org.apache.kafka.common.serialization.ByteArray"

# The settings of Kafka 4.3's consumer, producer and admin client without a counterpart here, with Java's defaults:
# the ``configDef()`` of each. Nothing after the bar: no default, or an empty one.
_JAVA_DEFAULTS = """
client.dns.lookup | use_all_dns_ips
compression.gzip.level | -1
compression.lz4.level | 9
compression.zstd.level | 3
config.providers |
connections.max.idle.ms | 300000
connections.max.idle.ms | 540000
enable.metrics.push | false
enable.metrics.push | true
exclude.internal.topics | true
interceptor.classes |
internal.throw.on.fetch.stable.offset.unsupported | false
key.deserializer |
key.serializer |
metadata.max.idle.ms | 300000
metadata.recovery.rebootstrap.trigger.ms | 300000
metadata.recovery.strategy | rebootstrap
metric.reporters | org.apache.kafka.common.metrics.JmxReporter
metrics.num.samples | 2
metrics.recording.level | INFO
metrics.sample.window.ms | 30000
partitioner.adaptive.partitioning.enable | true
partitioner.availability.timeout.ms | 0
partitioner.class |
partitioner.ignore.keys | false
receive.buffer.bytes | 32768
receive.buffer.bytes | 65536
reconnect.backoff.max.ms | 1000
reconnect.backoff.ms | 50
sasl.client.callback.handler.class |
sasl.jaas.config |
sasl.kerberos.kinit.cmd | /usr/bin/kinit
sasl.kerberos.min.time.before.relogin | 60000
sasl.kerberos.service.name |
sasl.kerberos.ticket.renew.jitter | 0.05
sasl.kerberos.ticket.renew.window.factor | 0.8
sasl.login.callback.handler.class |
sasl.login.class |
sasl.login.connect.timeout.ms |
sasl.login.read.timeout.ms |
sasl.login.refresh.buffer.seconds | 300
sasl.login.refresh.min.period.seconds | 60
sasl.login.refresh.window.factor | 0.8
sasl.login.refresh.window.jitter | 0.05
sasl.login.retry.backoff.max.ms | 10000
sasl.login.retry.backoff.ms | 100
sasl.mechanism | GSSAPI
sasl.oauthbearer.assertion.algorithm | RS256
sasl.oauthbearer.assertion.claim.aud |
sasl.oauthbearer.assertion.claim.exp.seconds | 300
sasl.oauthbearer.assertion.claim.iss |
sasl.oauthbearer.assertion.claim.jti.include | false
sasl.oauthbearer.assertion.claim.nbf.seconds | 60
sasl.oauthbearer.assertion.claim.sub |
sasl.oauthbearer.assertion.file |
sasl.oauthbearer.assertion.private.key.file |
sasl.oauthbearer.assertion.private.key.passphrase |
sasl.oauthbearer.assertion.template.file |
sasl.oauthbearer.client.credentials.client.id |
sasl.oauthbearer.client.credentials.client.secret |
sasl.oauthbearer.clock.skew.seconds | 30
sasl.oauthbearer.expected.audience |
sasl.oauthbearer.expected.issuer |
sasl.oauthbearer.header.urlencode | false
sasl.oauthbearer.jwks.endpoint.refresh.ms | 3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms | 10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms | 100
sasl.oauthbearer.jwks.endpoint.url |
sasl.oauthbearer.jwt.retriever.class | org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class | org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
sasl.oauthbearer.scope |
sasl.oauthbearer.scope.claim.name | scope
sasl.oauthbearer.sub.claim.name | sub
sasl.oauthbearer.token.endpoint.url |
security.providers |
send.buffer.bytes | 131072
share.acknowledgement.mode | implicit
share.acquire.mode | BATCH_OPTIMIZED
socket.connection.setup.timeout.max.ms | 30000
ssl.cipher.suites |
ssl.enabled.protocols | TLSv1.2,TLSv1.3
ssl.endpoint.identification.algorithm | https
ssl.engine.factory.class |
ssl.key.password |
ssl.keymanager.algorithm | SunX509
ssl.keystore.certificate.chain |
ssl.keystore.key |
ssl.keystore.location |
ssl.keystore.password |
ssl.keystore.type | JKS
ssl.protocol | TLSv1.3
ssl.provider |
ssl.secure.random.implementation |
ssl.trustmanager.algorithm | PKIX
ssl.truststore.certificates |
ssl.truststore.location |
ssl.truststore.password |
ssl.truststore.type | JKS
transaction.timeout.ms | 60000
transaction.two.phase.commit.enable | false
transactional.id |
value.deserializer |
value.serializer |
"""


@cache
def java_defaults() -> Mapping[str, str]:
    """Returns Java's defaults by name, with underscores. Empty: no default."""
    rows = (line.partition("|") for line in _JAVA_DEFAULTS.strip().splitlines())
    return {name.strip().replace(".", "_"): default.strip() for name, _, default in rows}


def effective(settings: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """Returns the settings without those that ask for nothing. Settings in ``known`` have a counterpart and stay.

    Names have dots or underscores. A setting without a counterpart asks for nothing if its value is empty or Java's
    default, or if it is the time, size or switch of a mechanism that another setting would have to select. After
    ``security.protocol=PLAINTEXT``, Java's clients use no setting of TLS and SASL at all.
    """
    is_plain = any(
        name.replace(".", "_") == _PROTOCOL and _text(value).upper() == "PLAINTEXT" for name, value in settings.items()
    )
    return {
        name: value
        for name, value in settings.items()
        if (key := name.replace(".", "_")) in known or not asks_for_nothing(key, value, is_plain=is_plain)
    }


def asks_for_nothing(key: str, value: object, *, is_plain: bool) -> bool:
    """Returns whether a setting without a counterpart asks for nothing. ``is_plain``: see ``effective``."""
    text = _text(value)
    if key == _PROTOCOL:
        return text.upper() in ("PLAINTEXT", "")
    if key.startswith(_SECURE) and is_plain:
        return True
    default = java_defaults().get(key)
    if default is None:
        return False
    if not text or text.lower() == default.lower():
        return True
    if key.endswith(("serializer", "deserializer")):
        return text.startswith(_BYTES)
    return key.startswith(_SECURE) and _is_measure(key, default) and _is_measure(key, text)


def _is_measure(key: str, text: str) -> bool:
    """Returns whether a value is a number or a switch: a time, size or share of a mechanism."""
    if text.lower() in ("true", "false"):
        return True
    try:
        float(text)
    except ValueError:
        return not text and key.endswith("_ms")
    return True


def _text(value: object) -> str:
    return "" if value is None else ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value).strip()
