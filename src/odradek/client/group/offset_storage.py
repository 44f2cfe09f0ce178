"""Where the committed offsets of a consumer are: in Kafka, in another store, or in both (dual commit).

| ``offsets_storage`` | ``dual_commit_enabled`` | a consumer starts at | commits go to | if the store does not answer |
|---|---|---|---|---|
| kafka | false | Kafka's offset | Kafka | – |
| kafka | true | the larger offset | Kafka, then the store | the consumer warns and goes on |
| zookeeper | – | the store's offset; if it is behind Kafka's, the start fails | the store | the consumer waits |

With a store, a consumer becomes the owner of its partitions before it reads them. With dual commit, it also reads
without ownership while the store does not answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from odradek.client.errors import IllegalState, OffsetStoreUnreachable
from odradek.client.group.config import ConsumerConfig
from odradek.client.group.errors import OffsetStoreBehind
from odradek.client.group.offset_store import ConsumerOffsetStore, store_opener
from odradek.core.errors import OdradekError
from odradek.core.ids import OffsetAndMetadata, TopicPartition

logger = logging.getLogger("odradek.consumer")

Committed = Mapping[TopicPartition, OffsetAndMetadata]


class OffsetStorage:
    """Owns, reads and commits the offsets of one consumer in the store, as the table above says. The caller reads and
    commits those in Kafka.

    ``changed`` wakes a waiting poll. Raises ConfigError for a wrong setting of the store."""

    def __init__(self, config: ConsumerConfig, changed: Callable[[], None]) -> None:
        self.group_id = config.group_id or ""
        opener = store_opener(config)
        self.store: ConsumerOffsetStore | None = None if opener is None else opener(self._on_lost)
        self.is_dual = config.dual_commit_enabled
        self.lost: frozenset[TopicPartition] = frozenset()
        """Partitions that this consumer no longer owns: the next poll gives them up and tries to own them again."""
        self._changed = changed
        self._topics: frozenset[str] = frozenset()
        self._unowned: frozenset[TopicPartition] = frozenset()
        """Dual commit: partitions that are read without ownership, which was lost or could not be taken."""
        self._unread: frozenset[TopicPartition] = frozenset()
        """Dual commit: partitions whose offset in the store has to be read before the next commit to it."""
        self._behind: dict[TopicPartition, int] = {}
        """Dual commit: offsets that are committed in Kafka and not yet in the store."""

    @property
    def is_only_in_store(self) -> bool:
        """Whether Kafka gets no commits."""
        return self.store is not None and not self.is_dual

    def check_transactions(self) -> None:
        """Raises IllegalState if a Kafka transaction cannot commit this consumer's offsets."""
        if self.is_only_in_store:
            raise IllegalState(
                "group_metadata() is for offsets in a transaction of Kafka, and offsets_storage=zookeeper keeps them "
                "elsewhere: set offsets_storage=kafka"
            )

    # --- owners -----------------------------------------------------------------------------------------------

    def may_read(self, tp: TopicPartition) -> bool:
        """Whether records of a partition may be fetched."""
        return self.store is None or self.store.owns(tp) or tp in self._unowned

    async def take_ownership(
        self, partitions: Iterable[TopicPartition], topics: Iterable[str]
    ) -> dict[TopicPartition, str]:
        """Makes this consumer the owner of all partitions, or of none. Returns the other owners by partition.

        Dual commit: if the store raises an error, the partitions may be read without ownership."""
        assert self.store is not None
        wanted = frozenset(partitions)
        self._topics = frozenset(topics)
        try:
            return await self.store.take_ownership(wanted, self._topics)
        except OdradekError as error:
            if not self.is_dual:
                raise
            self._warn("reading although this consumer does not own the partitions", error)
            self._unowned |= wanted
            self._unread |= wanted
            return {}

    async def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Gives partitions up."""
        given_up = frozenset(partitions)
        self._unowned -= given_up
        self._unread -= given_up
        self.lost -= given_up
        for tp in given_up:
            self._behind.pop(tp, None)
        if self.store is not None and given_up:
            await self.store.release(given_up)

    def take_lost(self) -> frozenset[TopicPartition]:
        """Returns ``lost`` and empties it."""
        taken, self.lost = self.lost, frozenset()
        return taken

    def _on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        if self.is_dual:  # Kafka has the commits; the next commit takes ownership again
            self._unowned |= partitions
            self._unread |= partitions
            return
        self.lost |= partitions
        self._changed()

    async def close(self) -> None:
        """Ends the connection to the store."""
        if self.store is not None:
            await self.store.close()

    # --- reads ------------------------------------------------------------------------------------------------

    async def start_offsets(self, partitions: Iterable[TopicPartition], in_kafka: Committed) -> Committed:
        """Returns the offsets at which the consumer starts to read. Raises OffsetStoreBehind."""
        wanted = list(partitions)
        if self.store is None:
            return in_kafka
        if not self.is_dual:
            stored = await self.store.read(wanted)
            behind = {
                tp: (stored.get(tp), in_kafka[tp].offset)
                for tp in wanted
                if tp in in_kafka and in_kafka[tp].offset > stored.get(tp, -1)
            }
            if behind:
                raise OffsetStoreBehind(self.group_id, behind)
            return {tp: OffsetAndMetadata(offset) for tp, offset in stored.items()}
        owned = [tp for tp in wanted if self.store.owns(tp)]
        try:
            return self._larger(in_kafka, await self.store.read(owned))
        except OdradekError as error:
            self._warn("reading starts at Kafka's offsets", error)
            self._unread |= frozenset(owned)
            return in_kafka

    async def committed(self, partitions: Iterable[TopicPartition], in_kafka: Committed) -> Committed:
        """Returns the committed offsets in Kafka or in the store; with dual commit, the larger one of both."""
        if self.store is None:
            return in_kafka
        try:
            stored = await self.store.committed(partitions)
        except OdradekError as error:
            if not self.is_dual:
                raise
            self._warn("only Kafka's offsets are known", error)
            return in_kafka
        if self.is_dual:
            return self._larger(in_kafka, stored)
        return {tp: OffsetAndMetadata(offset) for tp, offset in stored.items()}

    def _larger(self, in_kafka: Committed, stored: Mapping[TopicPartition, int]) -> Committed:
        larger = dict(in_kafka)
        for tp, offset in stored.items():
            known = in_kafka[tp].offset if tp in in_kafka else None
            if known == offset:
                continue
            if known is None or offset > known:
                larger[tp] = OffsetAndMetadata(offset)
            logger.warning(
                "group %s: the committed offsets of %s differ: %s in Kafka, %d in ZooKeeper; the larger one counts. "
                "To rewind, move both: odradek groups reset --zookeeper-connect",
                self.group_id, tp, "none" if known is None else known, offset,
            )  # fmt: skip
        return larger

    # --- commits ----------------------------------------------------------------------------------------------

    async def copy_commit(self, taken: Mapping[TopicPartition, int]) -> None:
        """Dual commit: stores the offsets that Kafka has accepted, and those that the store has missed before.

        Logs a failure as a warning and does not raise it."""
        assert self.store is not None
        self._behind |= taken
        if not self.store.is_connected:
            self._warn("the commit is in Kafka only", OffsetStoreUnreachable("no connection"))
            return
        try:
            chosen = await self._writable()
            await self.store.commit(chosen, 0)
        except OdradekError as error:
            self._warn("the commit is in Kafka only", error)
        else:
            self._behind = {tp: offset for tp, offset in self._behind.items() if chosen.get(tp) != offset}

    async def _writable(self) -> dict[TopicPartition, int]:
        """Returns the offsets that the next commit to the store writes.

        First takes ownership of the partitions that this consumer does not own, and reads their offsets in the store.
        Leaves out an offset if the store has a larger one. If another consumer owns one of the partitions that this
        consumer does not own yet, leaves out all of these."""
        assert self.store is not None
        if unowned := self._unowned:
            owners = await self.store.take_ownership(unowned, self._topics)
            if owners:
                self.lost |= unowned
                self._unowned -= unowned
                self._changed()
                names = "; ".join(f"{tp} by {owner}" for tp, owner in sorted(owners.items()))
                logger.warning("group %s: another consumer owns partitions in ZooKeeper: %s", self.group_id, names)
            self._unowned -= unowned
        chosen = {tp: offset for tp, offset in self._behind.items() if tp not in self.lost}
        unread = [tp for tp in chosen if tp in self._unread]
        stored = await self.store.read(unread) if unread else {}
        for tp in unread:
            if stored.get(tp, -1) <= chosen[tp]:
                self._unread -= {tp}
                continue
            logger.warning(
                "group %s: ZooKeeper has %d for %s, which is larger than the commit %d in Kafka: ZooKeeper keeps it",
                self.group_id, stored[tp], tp, chosen.pop(tp),
            )  # fmt: skip
        return chosen

    def _warn(self, effect: str, error: OdradekError) -> None:
        logger.warning("group %s: ZooKeeper: %s: %s", self.group_id, error, effect)
