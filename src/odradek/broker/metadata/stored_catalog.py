"""The catalogue of a data directory while no request is served: at the start of a broker, and in tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.metadata.change import MAX_CHANGE_RECORDS, packed
from odradek.broker.metadata.committed_catalog import CommittedCatalog
from odradek.broker.metadata_log.log import DIRECTORY, MetadataConfig, MetadataLog
from odradek.broker.metadata_log.mark import MetadataMark, encode_id
from odradek.catalog.state import CatalogRequest, CatalogState
from odradek.core.effects import result_of
from odradek.storage.disk.files import Files

if TYPE_CHECKING:
    from odradek.broker.metadata.voter import Voter
    from odradek.broker.settings.config import BrokerConfig


class StoredCatalog:
    """The log of a catalogue, and the catalogue of its records. ``voter``: None for the directory of a lone broker."""

    def __init__(self, log: MetadataLog, catalog: CommittedCatalog, voter: Voter | None = None) -> None:
        self.log = log
        self.catalog = catalog
        self.voter = voter

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        clean: bool,
        node_id: int,
        directory_id: UUID,
        now_ms: Callable[[], int],
        files: Files,
        config: MetadataConfig | None = None,
        cluster_id: str = "",
    ) -> StoredCatalog:
        """Reads the catalogue of a lone broker. Raises the errors of ``MetadataLog.open``."""
        state = CatalogState(lambda data: UUID(bytes=data), (node_id,), directory_id)
        owner = MetadataMark(0, str(node_id), cluster_id, encode_id(directory_id))
        return cls.read_into(state, data_dir, owner, clean=clean, now_ms=now_ms, files=files, config=config)

    @classmethod
    def read_into(
        cls,
        state: CatalogState,
        data_dir: Path,
        owner: MetadataMark,
        *,
        clean: bool,
        now_ms: Callable[[], int],
        files: Files,
        config: MetadataConfig | None = None,
    ) -> StoredCatalog:
        """Reads a catalogue into an empty state. ``owner``: the mark of this directory at any offset.

        Raises the errors of ``MetadataLog.open``."""
        catalog = CommittedCatalog(state)
        log = MetadataLog.open(data_dir, catalog.replay, owner, clean=clean, now_ms=now_ms, files=files, config=config)
        catalog.begin_at(log.end_offset, log.read_removed)
        voter = None
        if log.quorum_state is not None:
            from odradek.broker.metadata.voter import Voter  # here, because a lone broker does not need it

            voter = Voter(log, log.quorum_state, int(owner.node_id), data_dir / DIRECTORY, files)
        return cls(log, catalog, voter)

    def lead(self) -> None:
        """Begins the leader epoch of a voter, unless it has begun. Raises StorageError."""
        if self.voter is not None and not self.voter.is_leading:
            self.voter.lead()
            self.catalog.begin_at(self.log.end_offset, self.log.read_removed)

    def apply(self, request: CatalogRequest) -> None:
        """Writes and syncs the records of a request, then applies them. Raises KafkaError if the request is refused,
        StorageError if the leader epoch of a voter cannot begin.

        The records may be several batches. After a crash, each batch is complete or missing.
        """
        generated = result_of(self.catalog.state.generate(request))
        if not generated:
            return
        self.lead()
        offset = self.log.end_offset
        for start in range(0, len(generated), MAX_CHANGE_RECORDS):
            some = generated[start : start + MAX_CHANGE_RECORDS]
            self.log.append([part for number, record in enumerate(some) for part in packed(record, number)], len(some))
        self.log.sync()
        self.catalog.apply(offset, generated)
        self.log.note_synced()

    def close(self) -> None:
        self.log.close()


def metadata_config(config: BrokerConfig) -> MetadataConfig:
    """Returns the settings of the metadata log."""
    return MetadataConfig(
        bytes_between_snapshots=config.metadata_log_max_record_bytes_between_snapshots,
        snapshot_interval_ms=config.metadata_log_max_snapshot_interval_ms,
        segment_bytes=config.metadata_log_segment_bytes,
        segment_ms=config.metadata_log_segment_ms,
        retention_bytes=config.metadata_max_retention_bytes,
        retention_ms=config.metadata_max_retention_ms,
    )
