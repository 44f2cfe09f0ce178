"""The catalogue as requests and publishers read it, and what a publisher is. Loaded for types alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from uuid import UUID

    from odradek.broker.scheduler import Steps
    from odradek.catalog.credentials import Credential
    from odradek.catalog.delta import Delta
    from odradek.catalog.shard import Entity, Topic


class CatalogImage(Protocol):
    """All that was committed and published: ``metadata_log.Catalog``, without what changes it."""

    @property
    def log_end_offset(self) -> int:
        """Rises with each change."""

    def topic(self, name: str) -> Topic | None: ...

    def topic_by_id(self, topic_id: UUID) -> Topic | None: ...

    def topics(self) -> Iterable[Topic]: ...

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """What was set on a topic itself."""

    def configs(self, resource_type: int, resource_name: str) -> Mapping[str, str]: ...

    def configured(self, resource_type: int) -> list[str]:
        """Names of the resources of a type on which something is set."""

    def quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        """Every client quota, by whom it binds."""

    def users(self) -> Mapping[str, Mapping[int, Credential]]:
        """SCRAM credentials: user → mechanism → credential."""

    def features(self) -> Mapping[str, int]:
        """Feature → its level, which is not 0."""

    def check_replicas(self, replicas: tuple[int, ...]) -> None:
        """Raises KafkaError (INVALID_REPLICA_ASSIGNMENT) where brokers cannot keep a partition so."""


class Publisher(Protocol):
    """A part of the broker that follows the catalogue."""

    def on_metadata_update(self, delta: Delta, image: CatalogImage) -> Steps[None] | None:
        """Acts on what has changed; in steps where there may be much to do.

        May raise at start, which is refused then. Later the change is committed, and there is no way back.
        """
