"""Protocols of the catalogue as requests read it, and of its publishers. Imported for type checks only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from uuid import UUID

    from odradek.broker.loop.scheduler import Steps
    from odradek.catalog.credentials import FormCounts
    from odradek.catalog.delta import Delta
    from odradek.catalog.records import Id16
    from odradek.catalog.state import Entity, Topic
    from odradek.core.access.acl import Acl
    from odradek.core.access.credential import Credential
    from odradek.core.access.delegation_token import DelegationToken


class BrokerEndpoint(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class RegisteredBroker(Protocol):
    """The registration of a broker (``cluster/nodes/registrations``)."""

    @property
    def broker_id(self) -> int: ...

    @property
    def endpoints(self) -> tuple[BrokerEndpoint, ...]: ...

    @property
    def rack(self) -> str | None: ...

    @property
    def epoch(self) -> int:
        """The broker epoch."""

    @property
    def is_fenced(self) -> bool: ...

    @property
    def is_shutting_down(self) -> bool:
        """Whether the broker is in a controlled shutdown."""

    def has_online(self, directory: Id16) -> bool:
        """Returns whether a replica in this log directory is online."""


class CatalogView(Protocol):
    """The committed and published catalogue, as it is now: ``metadata/committed_catalog`` without the methods that
    change it."""

    @property
    def log_end_offset(self) -> int:
        """The end offset of the metadata log. It grows with each change."""

    def topic(self, name: str) -> Topic | None: ...

    def topic_by_id(self, topic_id: UUID) -> Topic | None: ...

    def removed_topic(self, topic_id: UUID) -> str | None:
        """Returns the name of a topic that a record of the log has removed; None for any other topic."""

    def topics(self) -> Iterable[Topic]: ...

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """Returns the settings of a topic, without the broker's defaults."""

    def configs(self, resource_type: int, resource_name: str) -> Mapping[str, str]: ...

    def configured_resources(self, resource_type: int) -> list[str]:
        """Returns the names of the resources of a type that have settings."""

    def quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        """Returns all client quotas by entity."""

    def users(self) -> Mapping[str, Mapping[int, Credential]]:
        """Returns the SCRAM credentials: user → mechanism → credential."""

    def credential_forms(self) -> Mapping[int, FormCounts]:
        """Returns how many users have each form of a SCRAM credential: mechanism → counts."""

    def tokens(self) -> Mapping[str, DelegationToken]:
        """Returns the delegation tokens by id."""

    def acls(self) -> Mapping[UUID, Acl]:
        """Returns all ACLs by id."""

    def features(self) -> Mapping[str, int]:
        """Returns feature → level. Features at level 0 are absent."""

    def registered_brokers(self) -> Mapping[int, RegisteredBroker]:
        """Returns the registered brokers by id, fenced ones, too. A lone broker registers none."""

    def check_replicas(self, replicas: tuple[int, ...]) -> None:
        """Raises KafkaError (INVALID_REPLICA_ASSIGNMENT) if these brokers cannot be the replicas of a partition."""


class Publisher(Protocol):
    """A part of the broker that follows the catalogue."""

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> Steps[None] | None:
        """Applies a change of the catalogue. Returns steps if the work may take long.

        An exception during the broker's start ends the start. A later exception is only logged, because the change is
        already committed.
        """
