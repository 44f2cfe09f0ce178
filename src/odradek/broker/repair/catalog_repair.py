"""The repair of a data directory's catalogue, for ``odradek metadata``. Only while no broker uses the directory.

The repaired catalogue is one snapshot above all offsets that were ever used. It has all readable records. If records
are lost, it also has

* the topics whose directories no readable record names, with the ids in these directories,
* settings of topics that keep all records, because the lost records may have been settings of any topic,
* a next producer id that no lost record has allocated.

A voter's ``quorum-state`` gets an epoch that no lost record has, if records are lost or the file is wrong.

Before a change, the files are copied into a directory ``__cluster_metadata-0.<32 hex digits>-stray``. The snapshot
becomes valid by its rename, so an interrupted repair can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from uuid import UUID, uuid4

from odradek.broker.coordinators.registry import TYPES
from odradek.broker.loop.scheduler import finish
from odradek.broker.metadata_log import mark as metadata_mark
from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log import snapshot as metadata_snapshot
from odradek.broker.metadata_log.check import noted_end, synced_floor
from odradek.broker.metadata_log.diagnosis import Diagnosis, DirectoryTopic
from odradek.broker.metadata_log.mark import MetadataMark
from odradek.broker.metadata_log.quorum_state import NEWEST_EPOCH, QuorumState
from odradek.broker.metadata_log.snapshot import EPOCH
from odradek.broker.metadata_log.stray_logs import METADATA_DIRECTORY, STRAY_SUFFIX, renamed
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.image import CatalogImage
from odradek.catalog.records import ConfigRecord, PartitionRecord, ProducerIdsRecord, TopicRecord
from odradek.catalog.state import PRODUCER_ID_BLOCK, TOPIC, CatalogState
from odradek.core.deferred import Deferred
from odradek.core.ids import METADATA_TOPIC, NO_NODE, TopicPartition
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files

KEEPING = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Settings with which a topic keeps all records."""
LOST_EPOCHS = 1000
"""More leader epochs than lost records have begun: one begins at each start of a voter."""
KEEPING_COMPACTED = {"min.compaction.lag.ms": str(2**63 - 1)}


class RepairPlan:
    """A repair. ``steps`` has one line for each change; ``carry_out`` makes the changes."""

    def __init__(self, diagnosis: Diagnosis, now_ms: int) -> None:
        self._diagnosis = diagnosis
        self._now_ms = now_ms
        self._catalog = diagnosis.salvage.catalog
        self._has_new_log = bool(
            diagnosis.fault is not None
            or diagnosis.salvage.notes
            or diagnosis.is_lossy
        )  # fmt: skip
        self._copy = diagnosis.data_dir / renamed(TopicPartition(METADATA_TOPIC, 0), STRAY_SUFFIX)
        self.steps: list[str] = []
        if self._has_new_log:
            self._plan_log()
        self._state = self._wanted_state()
        if self._state is not None:
            self.steps.append(f"write {checkpoints.QUORUM_STATE} with the leader epoch {self._state.epoch}")
        self._properties = self._wanted_properties()
        self._has_new_properties = bool(diagnosis.properties_fault)
        if self._has_new_properties:
            self.steps.append(
                f"write {checkpoints.META_PROPERTIES} with "
                + ", ".join(f"{name}={value}" for name, value in self._properties.items())
            )

    @property
    def copy(self) -> Path:
        """The directory that gets the copy of the present files."""
        return self._copy

    def _plan_log(self) -> None:
        diagnosis, catalog = self._diagnosis, self._catalog
        self.steps.append(f"copy the metadata log, its mark and meta.properties to {self._copy.name}")
        if diagnosis.is_lossy:
            for topic in diagnosis.unknown:
                self._add_topic(topic)
            self._keep_records()
            self._skip_producer_ids()
        names = self._diagnosis.files.list(diagnosis.path)
        noted = noted_end(diagnosis.data_dir, diagnosis.files)
        end_offset = max(diagnosis.salvage.end_offset, synced_floor(names), noted)
        if diagnosis.mark is not None:
            end_offset = max(end_offset, diagnosis.mark.end_offset)
        for lost in diagnosis.lost:
            end_offset = max(end_offset, lost.start + 1, lost.end or 0)
        self._end_offset = max(end_offset, 1)
        self.steps.append(
            f"write a snapshot (topics: {len(catalog.topics)}) at offset {self._end_offset}, and remove the files of "
            "the old metadata log"
        )
        if diagnosis.is_lossy:
            self.steps.append("check all logs at the next start, as after a crash")

    def _add_topic(self, topic: DirectoryTopic) -> None:
        catalog, node_id = self._catalog, self._diagnosis.node_id
        first = 0
        known = catalog.topics_by_id.get(topic.topic_id)
        if known is None:
            catalog.apply(-1, TopicRecord(topic.name, topic.topic_id))
            for name, value in internal_configs(topic.name).items():
                catalog.apply(-1, ConfigRecord(TOPIC, topic.name, name, value))
        else:
            first = known.partition_count
        count = topic.partitions[-1] + 1
        for index in range(first, count):
            record = PartitionRecord(
                index, topic.topic_id, (node_id,), (node_id,), node_id, directories=(catalog.directory,)
            )
            catalog.apply(-1, record)
        self.steps.append(f"take the topic {topic.name} (partitions: {count}) from its directories")

    def _keep_records(self) -> None:
        """Sets the settings with which no topic loses records because of a lost setting."""
        own = {kind.topic for kind in TYPES}
        names = [name for name in self._catalog.topics if name not in own]
        for name in names:
            for key, value in keeping_configs(self._catalog, name).items():
                self._catalog.apply(-1, ConfigRecord(TOPIC, name, key, value))
        if names:
            self.steps.append(
                f"set retention.ms=-1 and retention.bytes=-1 (and min.compaction.lag.ms, if it is compacted) for each "
                f"topic, {names[0]} for one: lost records may have been settings. Set the right ones after the start: "
                "`odradek topics alter TOPIC --config NAME=VALUE` or `--delete-config NAME`"
            )

    def _skip_producer_ids(self) -> None:
        """Uses the time as the next producer id: a lost record may have allocated any id below it."""
        block = PRODUCER_ID_BLOCK
        next_id = max(self._catalog.next_producer_id, -(-self._now_ms // block) * block)
        self._catalog.apply(-1, ProducerIdsRecord(self._diagnosis.node_id, -1, next_id))
        self.steps.append(f"allocate the next producer ids from {next_id} on")

    def _wanted_state(self) -> QuorumState | None:
        """Returns the state of a voter whose file or log is replaced; None for a lone broker."""
        diagnosis = self._diagnosis
        is_wrong = bool(diagnosis.voter_fault)
        if not is_wrong and (diagnosis.voter is None or not self._has_new_log):
            return None
        epoch = diagnosis.epoch + (LOST_EPOCHS if is_wrong or diagnosis.is_lossy else 0)
        return QuorumState(NO_NODE, min(epoch, NEWEST_EPOCH), voters=(diagnosis.node_id,))

    def _wanted_properties(self) -> Mapping[str, str]:
        diagnosis, mark = self._diagnosis, self._diagnosis.mark
        cluster_id = mark.cluster_id if mark is not None else diagnosis.properties.get("cluster.id")
        return {
            "node.id": str(diagnosis.node_id),
            "directory.id": checkpoints.encode_uuid(UUID(bytes=self._catalog.directory.bytes)),
            "version": "1",
            "cluster.id": cluster_id or checkpoints.encode_uuid(uuid4()),
        }

    def carry_out(self) -> None:
        """Makes the changes. Raises OSError; then it can be repeated."""
        diagnosis = self._diagnosis
        data_dir, files = diagnosis.data_dir, diagnosis.files
        copy_catalog(data_dir, self._copy, files)
        if self._state is not None:  # before the log: it may have an older epoch, never a newer one
            quorum_state.write(diagnosis.path, files, self._state)
        if self._has_new_log:
            self._write_log()
        properties = self._properties
        if self._has_new_properties:
            checkpoints.write_meta_properties(data_dir, properties, files)
        if self._has_new_log:
            mark = MetadataMark(
                self._end_offset, properties["node.id"], properties["cluster.id"], properties["directory.id"]
            )
            metadata_mark.write(data_dir, files, mark)
        files.sync_dir(data_dir)

    def _write_log(self) -> None:
        path, files = self._diagnosis.path, self._diagnosis.files
        if self._diagnosis.is_lossy:
            checkpoints.remove_clean_shutdown(self._diagnosis.data_dir, files)
        files.make_dirs(path, private=True)
        before = files.list(path)
        snapshot = finish(
            metadata_snapshot.write(
                path,
                files,
                CatalogImage.of(self._catalog).values(),
                end_offset=self._end_offset,
                timestamp_ms=max(self._diagnosis.salvage.timestamp_ms, 0),
                now_ms=self._now_ms,
                in_thread=_at_once,
                epoch=self._state.epoch if self._state is not None else EPOCH,
            )
        )
        for name in before:
            if name[:20].isdigit() and name != snapshot.path.name:
                files.remove(path / name)
        files.sync_dir(path)


def _at_once(job: Callable[[], None]) -> Deferred[BaseException | None]:
    job()
    return Deferred.of(None)


def copy_catalog(data_dir: Path, target: Path, files: Files) -> None:
    """Copies the metadata log, its mark and ``meta.properties`` into a new directory. Raises OSError."""
    files.make_dirs(target, private=True)
    path = data_dir / METADATA_DIRECTORY
    sources = [path / name for name in files.list(path)]
    own = (data_dir / name for name in (metadata_mark.FILE, checkpoints.META_PROPERTIES))
    sources += [source for source in own if files.exists(source)]
    for source in sources:
        files.write(target / source.name, files.read(source))
    files.sync_dir(data_dir)


def internal_configs(name: str) -> Mapping[str, str]:
    """Returns the settings of a coordinator's topic; for any other topic, those with which it keeps all records."""
    for kind in TYPES:
        if kind.topic == name:
            configs = kind.topic_spec(BrokerConfig()).configs
            return {key: value for key, value in configs.items() if value is not None}
    return KEEPING


def keeping_configs(catalog: CatalogState, name: str) -> Mapping[str, str]:
    """Returns the settings with which a topic of the catalogue keeps all records."""
    is_compacted = "compact" in catalog.topic_configs(name).get("cleanup.policy", "")
    return KEEPING | KEEPING_COMPACTED if is_compacted else KEEPING
