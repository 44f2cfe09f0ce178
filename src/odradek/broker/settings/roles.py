"""The roles of a node and the voters of its quorum: Kafka's settings ``process.roles``, ``controller.quorum.voters``,
``controller.quorum.bootstrap.servers`` and ``controller.listener.names``, with Kafka's checks.

Without ``process.roles`` a node is a lone broker. So it is with both roles, if no other node is a voter: one process is
broker and controller. Clusters are not supported yet, so every other node is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple

from odradek.broker.settings.listeners import PROTOCOL_MAP
from odradek.core.errors import ConfigError

ROLES, VOTERS = "process.roles", "controller.quorum.voters"
SERVERS, CONTROLLER_LISTENERS = "controller.quorum.bootstrap.servers", "controller.listener.names"
LISTENERS = "listeners"
SETTINGS = (ROLES, VOTERS, SERVERS, CONTROLLER_LISTENERS)
BROKER, CONTROLLER = "broker", "controller"
FIRST_NODE = 1
"""The default of ``node.id``, as in ``table``."""
_ADDRESS = re.compile(r"(\[[\da-fA-F:.%]+\]|[\w.-]*):(\d{1,5})")
_NAME_OF_LISTENER = re.compile(r"([\w.-]+)://")


class VoterAddress(NamedTuple):
    """The address of a voter: of its listener for controllers."""

    host: str
    port: int


class NodeRoles(NamedTuple):
    """``voters``: node → address. ``servers``: where a node asks for the voters, instead of ``voters``.

    ``listeners`` and ``controller_listeners`` are names in upper case, in the order of the settings.
    """

    node_id: int
    roles: frozenset[str] = frozenset()
    voters: Mapping[int, VoterAddress] = {}
    servers: tuple[VoterAddress, ...] = ()
    listeners: tuple[str, ...] = ()
    controller_listeners: tuple[str, ...] = ()
    mapped_listeners: Collection[str] | None = None
    """The names in ``listener.security.protocol.map``; None without this setting."""

    @property
    def is_lone(self) -> bool:
        """Whether the node is broker and controller, and knows of no other voter."""
        return self.roles in (frozenset(), {BROKER, CONTROLLER}) and self.voters.keys() <= {self.node_id}


def read(texts: Mapping[str, str], node_id: int | None) -> NodeRoles:
    """Reads the settings. ``node_id``: None if it is not set; then it is that of the only voter.

    Raises ConfigError for a value that has another form."""
    roles = _parts(texts, ROLES)
    if wrong := [role for role in roles if role not in (BROKER, CONTROLLER)]:
        raise ConfigError(f"{ROLES}: the roles are {BROKER} and {CONTROLLER}, not {wrong[0]!r}")
    if len(set(roles)) < len(roles):
        raise ConfigError(f"{ROLES}: {texts[ROLES]} has the same role twice")
    mapped, voters = _parts(texts, PROTOCOL_MAP), _voters(texts)
    if node_id is None:
        node_id = next(iter(voters)) if len(voters) == 1 else FIRST_NODE
    return NodeRoles(
        node_id,
        frozenset(roles),
        voters,
        tuple(_address(SERVERS, part, part, "HOST:PORT") for part in _parts(texts, SERVERS)),
        tuple(name[1].upper() for part in _parts(texts, LISTENERS) if (name := _NAME_OF_LISTENER.match(part))),
        tuple(part.upper() for part in _parts(texts, CONTROLLER_LISTENERS)),
        {part.partition(":")[0].strip().upper() for part in mapped} if mapped else None,
    )


def check(node: NodeRoles) -> None:
    """Raises ConfigError for settings that contradict each other, as Kafka's start does, and for the node of a cluster,
    which is not supported yet.

    A lone broker needs no listener of a controller, so the checks of these listeners are those of a cluster."""
    if node.roles and CONTROLLER in node.roles and node.voters and node.node_id not in node.voters:
        raise ConfigError(
            f"{VOTERS}: {_ids(node.voters)} is without this controller, node.id={node.node_id}: add "
            f"{node.node_id}@HOST:PORT, or remove {CONTROLLER} from {ROLES}"
        )
    if node.is_lone:
        return
    if node.roles:
        _check_quorum(node)
        _check_listeners(node)
    raise ConfigError(
        f"{_reason(node)}: clusters are not supported yet. Leave out {ROLES} and {VOTERS}: then this node is broker "
        "and controller in one process"
    )


def _check_quorum(node: NodeRoles) -> None:
    if not node.voters and not node.servers:
        raise ConfigError(f"{ROLES}: set {VOTERS} to NODE@HOST:PORT of each controller, or {SERVERS}")
    if CONTROLLER not in node.roles and node.node_id in node.voters:
        raise ConfigError(
            f"{VOTERS}: node.id={node.node_id} is a voter, but {ROLES} is without {CONTROLLER}: add it, or use "
            "another node.id"
        )


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
    if node.mapped_listeners is not None:
        for name in node.controller_listeners:
            if name not in node.mapped_listeners:
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
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found[2]) > 65_535:
        raise ConfigError(f"{setting}: {part!r} is not {form}")
    return VoterAddress(found[1].strip("[]"), int(found[2]))


def _parts(texts: Mapping[str, str], name: str) -> list[str]:
    return [part.strip() for part in texts.get(name, "").split(",") if part.strip()]


def _ids(voters: Mapping[int, VoterAddress]) -> str:
    return ",".join(f"{node}@{address.host}:{address.port}" for node, address in voters.items())


def _reason(node: NodeRoles) -> str:
    others = sorted(node.voters.keys() - {node.node_id})
    if node.roles and node.roles != {BROKER, CONTROLLER}:
        (role,) = node.roles
        return f"{ROLES}={role}"
    return f"{VOTERS}: it names node {', '.join(map(str, others))}, and this is node {node.node_id}"
