"""The roles of a node and the voters of its quorum: Kafka's settings ``process.roles``, ``controller.quorum.voters``,
``controller.quorum.bootstrap.servers`` and ``controller.listener.names``, with Kafka's checks.

Without ``process.roles`` a node is a lone broker. So it is with both roles, if no other node is a voter, unless its
directory was formatted for a cluster (``BrokerConfig.use_both_roles``): then it is broker and controller of one. Every
other node belongs to a cluster with one controller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from odradek.broker.settings.listener import WILDCARDS
from odradek.broker.settings.listener_settings import CONTROLLER_LISTENERS, PROTOCOL_MAP, controller_listeners
from odradek.core.errors import ConfigError
from odradek.security.protocols import PLAINTEXT, PROTOCOLS

ROLES, VOTERS = "process.roles", "controller.quorum.voters"
SERVERS = "controller.quorum.bootstrap.servers"
LISTENERS, INNER, INNER_PROTOCOL = "listeners", "inter.broker.listener.name", "security.inter.broker.protocol"
SETTINGS = (ROLES, VOTERS, SERVERS, CONTROLLER_LISTENERS)
BROKER, CONTROLLER = "broker", "controller"
FIRST_NODE = 1
"""The default of ``node.id``, as in ``table``."""
_SECURED = frozenset(PROTOCOLS) - {PLAINTEXT}
_ADDRESS = re.compile(r"(\[[\da-fA-F:.%]+\]|[\w.-]*):(\d{1,5})")
_NAME_OF_LISTENER = re.compile(r"([\w.-]+)://")


class VoterAddress(NamedTuple):
    """The address of a voter: of its listener for controllers."""

    host: str
    port: int


class NodeRoles(NamedTuple):
    """``voters``: node → address. ``servers``: where a node asks for the voters, instead of ``voters``.

    ``listeners`` and ``controller_listeners`` are names in upper case, in the order of the settings. ``protocols``:
    ``listener.security.protocol.map``; None without this setting. ``inner``: the listener between brokers.
    """

    node_id: int
    roles: frozenset[str] = frozenset()
    voters: Mapping[int, VoterAddress] = {}
    servers: tuple[VoterAddress, ...] = ()
    listeners: tuple[str, ...] = ()
    controller_listeners: tuple[str, ...] = ()
    protocols: Mapping[str, str] | None = None
    inner: str = PLAINTEXT
    has_node_id: bool = False

    @property
    def is_lone(self) -> bool:
        """Whether the node is broker and controller, and knows of no other voter."""
        return self.roles in (frozenset(), {BROKER, CONTROLLER}) and self.voters.keys() <= {self.node_id}

    @property
    def may_be_combined(self) -> bool:
        """Whether the node is broker and controller, and other nodes could reach its listener for controllers."""
        has_both = self.roles == {BROKER, CONTROLLER} and self.voters.keys() == {self.node_id}
        return has_both and not set(self.controller_listeners).isdisjoint(self.listeners)

    @property
    def is_controller(self) -> bool:
        return CONTROLLER in self.roles

    @property
    def is_broker(self) -> bool:
        return BROKER in self.roles

    @property
    def controller(self) -> tuple[int, VoterAddress]:
        """The node id and the address of the only controller of a cluster, after ``check``."""
        return next(iter(self.voters.items()))


def read(texts: Mapping[str, str], node_id: int | None) -> NodeRoles:
    """Reads the settings. ``node_id``: None if it is not set; then it is that of the only voter.

    Raises ConfigError for a value that has another form."""
    roles = _parts(texts, ROLES)
    if wrong := [role for role in roles if role not in (BROKER, CONTROLLER)]:
        raise ConfigError(f"{ROLES}: the roles are {BROKER} and {CONTROLLER}, not {wrong[0]!r}")
    if len(set(roles)) < len(roles):
        raise ConfigError(f"{ROLES}: {texts[ROLES]} has the same role twice")
    mapped, voters = _parts(texts, PROTOCOL_MAP), _voters(texts)
    has_node_id = node_id is not None
    if node_id is None:
        node_id = next(iter(voters)) if len(voters) == 1 else FIRST_NODE
    pairs = [part.partition(":") for part in mapped]
    return NodeRoles(
        node_id,
        frozenset(roles),
        voters,
        tuple(_address(SERVERS, part, part, "HOST:PORT") for part in _parts(texts, SERVERS)),
        tuple(name[1].upper() for part in _parts(texts, LISTENERS) if (name := _NAME_OF_LISTENER.match(part))),
        controller_listeners(texts),
        {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs} if mapped else None,
        (texts.get(INNER, "").strip() or texts.get(INNER_PROTOCOL, "").strip() or PLAINTEXT).upper(),
        has_node_id,
    )


def check(node: NodeRoles) -> None:
    """Raises ConfigError for settings that contradict each other, as Kafka's start does, and for clusters that this
    release does not have: those with several controllers.

    A lone broker needs no listener of a controller, so the checks of these listeners are those of a cluster."""
    if CONTROLLER in node.roles and node.voters and node.node_id not in node.voters:
        raise ConfigError(
            f"{VOTERS}: {_ids(node.voters)} is without this controller, node.id={node.node_id}: add "
            f"{node.node_id}@HOST:PORT, or remove {CONTROLLER} from {ROLES}"
        )
    if node.is_lone:
        return
    if not node.roles:
        raise ConfigError(
            f"{VOTERS}: it names node {', '.join(map(str, node.voters))}, but {ROLES} is missing: set it to {BROKER} "
            f"or {CONTROLLER}, or leave {VOTERS} out: then this node is a lone broker"
        )
    check_node(node)


def check_node(node: NodeRoles) -> None:
    """Raises ConfigError for a node of a cluster that cannot work."""
    _check_quorum(node)
    _check_listeners(node)
    _check_support(node)


def _check_quorum(node: NodeRoles) -> None:
    if not node.has_node_id:
        raise ConfigError(
            f"node.id: a node of a cluster needs one: set node.id to a number of its own, e.g. {FIRST_NODE}"
        )
    if not node.voters and not node.servers:
        raise ConfigError(f"{ROLES}: set {VOTERS} to NODE@HOST:PORT of the controller")
    if CONTROLLER not in node.roles and node.node_id in node.voters:
        raise ConfigError(
            f"{VOTERS}: node.id={node.node_id} is a voter, but {ROLES} is without {CONTROLLER}: add it, or use "
            "another node.id"
        )


def _check_support(node: NodeRoles) -> None:
    """Raises ConfigError for clusters that Kafka has and this release has not."""
    if not node.voters:
        raise ConfigError(
            f"{SERVERS}: a controller cannot be found by it, because its quorum has fixed voters: set {VOTERS} to "
            "NODE@HOST:PORT of the controller"
        )
    if len(node.voters) > 1:
        raise ConfigError(
            f"{VOTERS}: {_ids(node.voters)} names {len(node.voters)} controllers, and a cluster has one here: name one"
        )
    address = node.controller[1]
    if address.port == 0 or address.host in WILDCARDS:
        raise ConfigError(f"{VOTERS}: {_ids(node.voters)} is no address that brokers can reach: name host and port")


def _check_listeners(node: NodeRoles) -> None:
    of_controllers = [name for name in node.controller_listeners if name in node.listeners]
    if not node.controller_listeners:
        raise ConfigError(f"{CONTROLLER_LISTENERS}: name the listener of the controllers, e.g. CONTROLLER")
    if CONTROLLER in node.roles:
        if missing := [name for name in node.controller_listeners if name not in node.listeners]:
            raise ConfigError(
                f"{CONTROLLER_LISTENERS}: {missing[0]} is not in {LISTENERS}: add {missing[0]}://HOST:PORT"
            )
    elif of_controllers:
        raise ConfigError(
            f"{LISTENERS}: {of_controllers[0]} is a listener of controllers ({CONTROLLER_LISTENERS}), and this node is "
            "none: leave it out"
        )
    others = [name for name in node.listeners if name not in of_controllers]
    if BROKER not in node.roles and others:
        raise ConfigError(
            f"{LISTENERS}: {others[0]} is no listener of controllers: leave it out, or add it to {CONTROLLER_LISTENERS}"
        )
    if BROKER in node.roles and node.listeners and not others:
        raise ConfigError(f"{LISTENERS}: all of them are in {CONTROLLER_LISTENERS}: add one for clients")
    if BROKER in node.roles and node.listeners and node.inner not in others:
        raise ConfigError(
            f"{INNER}: the listener {node.inner}, by which other brokers connect, is not in {LISTENERS}: set {INNER}="
            f"{others[0]}"
        )
    is_plain = {*node.listeners, *node.controller_listeners}.isdisjoint(_SECURED)
    for name in node.controller_listeners:
        if name not in (node.protocols or {}) and (node.protocols is not None or not is_plain):
            raise ConfigError(f"{PROTOCOL_MAP}: it has no protocol for the listener {name}: add {name}:PLAINTEXT")


def _voters(texts: Mapping[str, str]) -> dict[int, VoterAddress]:
    voters: dict[int, VoterAddress] = {}
    for part in _parts(texts, VOTERS):
        node, at, address = part.partition("@")
        if not at or not node.isascii() or not node.isdigit() or int(node) >= 1 << 31:
            raise ConfigError(f"{VOTERS}: {part!r} is not NODE@HOST:PORT")
        if int(node) in voters:
            raise ConfigError(f"{VOTERS}: it has node {int(node)} twice")
        voters[int(node)] = _address(VOTERS, part, address, "NODE@HOST:PORT")
    return voters


def _address(setting: str, part: str, address: str, form: str) -> VoterAddress:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[2]) > 65_535:
        raise ConfigError(f"{setting}: {part!r} is not {form}")
    return VoterAddress(match[1].strip("[]"), int(match[2]))


def _parts(texts: Mapping[str, str], name: str) -> list[str]:
    return [part.strip() for part in texts.get(name, "").split(",") if part.strip()]


def _ids(voters: Mapping[int, VoterAddress]) -> str:
    return ",".join(f"{node}@{address.host}:{address.port}" for node, address in voters.items())
