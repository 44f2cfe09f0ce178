"""Settings of nodes: of a lone broker, of nodes of a cluster, and those that cannot work."""

from __future__ import annotations

CLUSTER = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.quorum.voters": "1@a:9093,2@b:9093,3@[::1]:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
}
"""A node of a cluster with three controllers."""
BROKER_ONLY = CLUSTER | {"node.id": "7", "process.roles": "broker", "listeners": "PLAINTEXT://:9092"}
CONTROLLER_ONLY = CLUSTER | {"process.roles": "controller", "listeners": "CONTROLLER://:9093"}
KAFKAS_PROPERTIES = CLUSTER | {"controller.quorum.voters": "1@localhost:9093"}
"""The server.properties of a single node of Apache Kafka."""

ONE_VOTER = {"controller.quorum.voters": "100@localhost:9093"}
BROKER, CONTROLLER = BROKER_ONLY | ONE_VOTER, CONTROLLER_ONLY | ONE_VOTER | {"node.id": "100"}
"""Nodes of a cluster with one controller."""


def without(texts: dict[str, str], *names: str) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name not in names}


MAP = CLUSTER["listener.security.protocol.map"]
SSL_INSIDE = {"inter.broker.listener.name": "SSL"}
FORMS: list[tuple[dict[str, str], str]] = [
    ({"process.roles": "broker,observer"}, "process.roles: the roles are broker and controller, not 'observer'"),
    ({"process.roles": "broker,broker"}, "process.roles: broker,broker has the same role twice"),
    *(
        ({"controller.quorum.voters": f"1@a:1,{voter}"}, f"controller.quorum.voters: {voter!r} is not NODE@HOST:PORT")
        for voter in ["2", "@b:1", "b:1", "x@b:1", "2@b", "2@b:", "2@b:65536", "2@b:x", "2147483648@b:1"]
    ),
    (
        {"controller.quorum.bootstrap.servers": "1@a:1"},
        "controller.quorum.bootstrap.servers: '1@a:1' is not HOST:PORT",
    ),
]
"""Values of another form, and the line about each."""

CONTRADICTIONS: list[tuple[dict[str, str], str]] = [
    (
        CLUSTER | {"node.id": "4"},
        "controller.quorum.voters: 1@a:9093,2@b:9093,3@::1:9093 is without this controller, node.id=4: add "
        "4@HOST:PORT, or remove controller from process.roles",
    ),
    (
        BROKER_ONLY | {"node.id": "2"},
        "controller.quorum.voters: node.id=2 is a voter, but process.roles is without controller: add it, or use "
        "another node.id",
    ),
    (
        without(BROKER_ONLY, "controller.quorum.voters"),
        "process.roles: set controller.quorum.voters to NODE@HOST:PORT of the controller",
    ),
    (
        without(BROKER_ONLY, "controller.listener.names"),
        "controller.listener.names: name the listener of the controllers, e.g. CONTROLLER",
    ),
    (
        BROKER_ONLY | {"listeners": CLUSTER["listeners"]},
        "listeners: CONTROLLER is a listener of controllers (controller.listener.names), and this node is none: "
        "leave it out",
    ),
    (
        CONTROLLER_ONLY | {"listeners": CLUSTER["listeners"]},
        "listeners: PLAINTEXT is no listener of controllers: leave it out, or add it to controller.listener.names",
    ),
    (
        CLUSTER | {"controller.listener.names": "CONTROLLER,OTHER"},
        "controller.listener.names: OTHER is not in listeners: add OTHER://HOST:PORT",
    ),
    (
        CLUSTER | {"listeners": "CONTROLLER://:9093"},
        "listeners: all of them are in controller.listener.names: add one for clients",
    ),
    (
        BROKER_ONLY | {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"},
        "listener.security.protocol.map: it has no protocol for the listener CONTROLLER: add CONTROLLER:PLAINTEXT",
    ),
    (
        without(BROKER, "node.id"),
        "node.id: a node of a cluster needs one: set node.id to a number of its own, e.g. 1",
    ),
    (
        without(BROKER, "process.roles"),
        "controller.quorum.voters: it names node 100, but process.roles is missing: set it to broker or controller, or "
        "leave controller.quorum.voters out: then this node is a lone broker",
    ),
    (
        without(BROKER, "listener.security.protocol.map") | {"listeners": "SSL://:9092", **SSL_INSIDE},
        "listener.security.protocol.map: it has no protocol for the listener CONTROLLER: add CONTROLLER:PLAINTEXT",
    ),
    (
        BROKER
        | {"listeners": "A://:9092,B://:9094", "listener.security.protocol.map": MAP + ",A:PLAINTEXT,B:PLAINTEXT"},
        "inter.broker.listener.name: the listener PLAINTEXT, by which other brokers connect, is not in listeners: set "
        "inter.broker.listener.name=A",
    ),
    (
        BROKER | {"inter.broker.listener.name": "CONTROLLER"},
        "inter.broker.listener.name: the listener CONTROLLER, by which other brokers connect, is not in listeners: set "
        "inter.broker.listener.name=PLAINTEXT",
    ),
]
"""Settings that contradict each other, and the line about them."""

OF_LISTENERS: list[tuple[dict[str, str], str]] = [
    (
        BROKER | {"inter.broker.listener.name": "PLAINTEXT", "security.inter.broker.protocol": "PLAINTEXT"},
        "security.inter.broker.protocol: inter.broker.listener.name is set, too: leave one of the two out",
    ),
    (BROKER | {"broker.id": "8"}, "broker.id: 8 is not node.id=7: leave broker.id out"),
    (
        CONTROLLER | {"advertised.listeners": "CONTROLLER://0.0.0.0:9093"},
        "advertised.listeners must be NAME://host:port with a host that clients can reach, not "
        "'CONTROLLER://0.0.0.0:9093'",
    ),
    (
        BROKER | {"listeners": "PLAINTEXT://a:9092,PLAINTEXT://b:9092"},
        "listeners: two listeners have the same name",
    ),
    (
        BROKER | {"metadata.max.idle.interval.ms": "-1"},
        "Invalid value -1 for configuration metadata.max.idle.interval.ms: Value must be at least 0",
    ),
]
"""Settings of a node that Kafka refuses, too, which other checks than those of roles find."""

LOGIN_AT_CONTROLLER = {"listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT"}
NOT_YET: list[tuple[dict[str, str], str]] = [
    (
        CLUSTER,
        "controller.quorum.voters: 1@a:9093,2@b:9093,3@::1:9093 names 3 controllers, and a cluster has one here: name "
        "one",
    ),
    (
        without(BROKER, "controller.quorum.voters") | {"controller.quorum.bootstrap.servers": "h:1"},
        "controller.quorum.bootstrap.servers: a controller cannot be found by it, because its quorum has fixed voters: "
        "set controller.quorum.voters to NODE@HOST:PORT of the controller",
    ),
    (
        BROKER | {"controller.quorum.voters": "100@0.0.0.0:9093"},
        "controller.quorum.voters: 100@0.0.0.0:9093 is no address that brokers can reach: name host and port",
    ),
    (
        BROKER | {"controller.quorum.voters": "100@h:0"},
        "controller.quorum.voters: 100@h:0 is no address that brokers can reach: name host and port",
    ),
    (
        CONTROLLER | {"listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT"},
        "listener.name.controller.sasl.enabled.mechanisms: GSSAPI (Kerberos), Kafka's default, is not supported: set "
        "it to PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or some of them",
    ),
    (
        BROKER | LOGIN_AT_CONTROLLER,
        "sasl.mechanism.controller.protocol: GSSAPI is not supported between nodes: set it to PLAIN, SCRAM-SHA-256, "
        "SCRAM-SHA-512, because the listener CONTROLLER is SASL_PLAINTEXT",
    ),
    (
        BROKER | LOGIN_AT_CONTROLLER | {"sasl.mechanism.controller.protocol": "OAUTHBEARER"},
        "sasl.mechanism.controller.protocol: OAUTHBEARER is not supported between nodes: set it to PLAIN, "
        "SCRAM-SHA-256, SCRAM-SHA-512, because the listener CONTROLLER is SASL_PLAINTEXT",
    ),
]
"""Settings that Kafka accepts and this release refuses."""

JAAS_OF_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
BETWEEN_BROKERS = BROKER | {
    "listeners": "INNER://:9092", "inter.broker.listener.name": "INNER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,INNER:SASL_PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "PLAIN", "listener.name.inner.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.inner.plain.sasl.jaas.config": f'{JAAS_OF_PLAIN} user_a="s3cret";',
}  # fmt: skip
OF_LOGINS: list[tuple[dict[str, str], str]] = [
    (
        BROKER | LOGIN_AT_CONTROLLER | {"sasl.mechanism.controller.protocol": "PLAIN"},
        "listener.name.controller.plain.sasl.jaas.config: it has no name and password of this node: add username and "
        "password, as in org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="NODE" password="PASSWORD";',
    ),
    (
        BETWEEN_BROKERS,
        "listener.name.inner.plain.sasl.jaas.config: it has no name and password of this node: add username and "
        "password, as in org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="NODE" password="PASSWORD";',
    ),
    (
        BETWEEN_BROKERS | {"sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256"},
        "sasl.mechanism.inter.broker.protocol: SCRAM-SHA-256 is not enabled at the listener INNER, by which brokers "
        "connect: add it to listener.name.inner.sasl.enabled.mechanisms",
    ),
    (
        BROKER | {"listener.security.protocol.map": "CONTROLLER:SSL,PLAINTEXT:PLAINTEXT",
                  "listener.name.controller.ssl.truststore.location": "/none.pem",
                  "listener.name.controller.ssl.truststore.type": "PEM"},
        "listener.name.controller.ssl.truststore.location /none.pem: No such file or directory",
    ),
]  # fmt: skip
"""Settings of nodes whose connections to other nodes could not work."""
