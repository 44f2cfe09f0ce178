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
BROKER_ONLY = CLUSTER | {"node.id": "7", "process.roles": "broker", "listeners": "PLAINTEXT://:9092"}
CONTROLLER_ONLY = CLUSTER | {"process.roles": "controller", "listeners": "CONTROLLER://:9093"}
KAFKAS_PROPERTIES = CLUSTER | {"controller.quorum.voters": "1@localhost:9093"}
"""The server.properties of a single node of Apache Kafka."""


def without(texts: dict[str, str], *names: str) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name not in names}


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
        "process.roles: set controller.quorum.voters to NODE@HOST:PORT of each controller, or "
        "controller.quorum.bootstrap.servers",
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
]
"""Settings that contradict each other, and the line about them."""
