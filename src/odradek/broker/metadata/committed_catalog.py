"""The catalogue as requests read it: the image of the committed and published records.

The loader applies committed records to it (``metadata/loader``). Nothing else changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, cast
from uuid import UUID

from odradek.broker.loop.scheduler import Steps
from odradek.catalog import records
from odradek.catalog.credentials import FormCounts
from odradek.catalog.delta import Delta
from odradek.catalog.records import Id16, MetadataRecord
from odradek.catalog.state import CatalogState, Entity, Topic
from odradek.core.access.acl import Acl
from odradek.core.access.credential import Credential
from odradek.core.access.delegation_token import DelegationToken

if TYPE_CHECKING:
    from odradek.broker.metadata.catalog_view import CatalogView, RegisteredBroker


class CommittedCatalog:
    """The state machine's committed state. Readers see it as ``CatalogView``, without the methods that change it."""

    def __init__(self, state: CatalogState) -> None:
        self.state = state
        self._end = 0
        self._removed: dict[Id16, str] = {}
        self._removed_end = -1
        self._read_removed: Callable[[], dict[Id16, str]] | None = None

    # --- committed records --------------------------------------------------------------------------------------

    def replay(self, offset: int, value: bytes) -> None:
        """Applies a record of the log, or with offset -1 of a snapshot, before the first publication.

        Raises ValueError."""
        removed = records.removed_topic(value)
        if removed is not None and (topic := self.state.topics_by_id.get(UUID(bytes=removed))) is not None:
            self._removed[topic.id] = topic.name
        self.state.replay(offset, value)

    def begin_at(self, end_offset: int, read_removed: Callable[[], dict[Id16, str]]) -> None:
        """Ends the replay. ``end_offset``: the end of the log. ``read_removed``: reads the names of the removed topics
        in the whole log, by id; raises OSError."""
        self._end, self._read_removed = end_offset, read_removed

    def apply(self, offset: int, changes: Sequence[MetadataRecord]) -> None:
        """Applies committed records at once, before the first publication. Raises ValueError."""
        for step, record in enumerate(changes):
            self.state.apply(offset + step, record)
        self._end = offset + len(changes)

    def commit(self, offset: int, changes: Sequence[MetadataRecord]) -> Steps[Delta]:
        """Applies committed records, one by one. Returns their changes.

        Requests see new topics and partitions only after they are published.
        """
        delta = Delta(self.state)
        for step, record in enumerate(changes):
            delta.replay(offset + step, record)
            yield None
        self._end = offset + len(changes)
        return delta

    def restore(self, state: CatalogState, end_offset: int) -> None:
        """Replaces the whole state by that of a snapshot."""
        self.state, self._end = state, end_offset

    def initial_delta(self) -> Delta:
        """Returns the delta from an empty catalogue to the whole image."""
        return Delta.of(self.state)

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> Steps[None]:
        """Shows the new topics and partitions to requests. All other changes are visible since their replay."""
        if delta.is_initial:
            return
        for topic in delta.new_topics:
            self.state.publish(topic)
            yield None

    def copied(self) -> CommittedCatalog:
        """Returns the topics, their settings and the features as they are now, for a publisher that takes long."""
        copy = CommittedCatalog(self.state.copied())
        copy._end, copy._removed, copy._removed_end = self._end, self._removed, self._removed_end
        copy._read_removed = self._read_removed
        return copy

    def at(self, end_offset: int) -> CommittedCatalog:
        """Returns the present image for a publisher that gets the change before this offset late: until it gets the
        last one, it must not take the image for complete."""
        late = CommittedCatalog(self.state)
        late._end, late._removed, late._removed_end = end_offset, self._removed, self._removed_end
        late._read_removed = self._read_removed
        return late

    # --- the image ----------------------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """The offset after the newest committed record. It grows with each change."""
        return self._end

    def removed_topic(self, topic_id: UUID) -> str | None:
        """Returns the name of a topic that a record of the log has removed. Only for the time of a start.

        For another topic the whole log is read, at most once for each of its ends. Raises OSError."""
        if topic_id not in self._removed and self._read_removed is not None and self._removed_end != self._end:
            self._removed_end = self._end
            self._removed = self._read_removed()
        return self._removed.get(topic_id)

    def topic(self, name: str) -> Topic | None:
        return self.state.topics.get(name)

    def topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self.state.topics_by_id.get(topic_id)

    def topics(self) -> Iterable[Topic]:
        return self.state.topics.values()

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """Returns the settings of a topic, without the broker's defaults."""
        return self.state.topic_configs(name)

    def configs(self, resource_type: int, resource_name: str) -> Mapping[str, str]:
        return self.state.configs.get((resource_type, resource_name), {})

    def configured_resources(self, resource_type: int) -> list[str]:
        """Returns the names of the resources of a type that have settings."""
        return sorted(name for kind, name in self.state.configs if kind == resource_type)

    def quotas(self) -> Mapping[Entity, Mapping[str, float]]:
        """Returns all client quotas by entity."""
        return self.state.quotas

    def users(self) -> Mapping[str, Mapping[int, Credential]]:
        """Returns the SCRAM credentials: user → mechanism → credential."""
        return self.state.users

    def credential_forms(self) -> Mapping[int, FormCounts]:
        """Returns how many users have each form of a SCRAM credential: mechanism → counts."""
        return self.state.forms

    def tokens(self) -> Mapping[str, DelegationToken]:
        """Returns the delegation tokens by id."""
        return self.state.tokens

    def acls(self) -> Mapping[UUID, Acl]:
        """Returns all ACLs by id."""
        return cast("Mapping[UUID, Acl]", self.state.acls.by_id)

    def features(self) -> Mapping[str, int]:
        """Returns feature → level. Features at level 0 are absent."""
        return self.state.features

    def registered_brokers(self) -> Mapping[int, RegisteredBroker]:
        """Returns the registered brokers by id, fenced ones, too. A lone broker registers none."""
        return cast("Mapping[int, RegisteredBroker]", self.state.registered_brokers)

    def check_replicas(self, replicas: tuple[int, ...]) -> None:
        """Raises KafkaError (INVALID_REPLICA_ASSIGNMENT) if these brokers cannot be the replicas of a partition."""
        self.state.check_replicas(replicas, len(replicas))
