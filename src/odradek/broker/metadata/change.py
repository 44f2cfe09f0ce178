"""The change of one request: the records that the controller generates, before the quorum commits them."""

from __future__ import annotations

from collections.abc import Callable

from odradek.batches.encode import pack_record
from odradek.broker.loop.scheduler import Steps
from odradek.broker.metadata_log.snapshot import KeylessRecord
from odradek.catalog import records
from odradek.catalog.records import MetadataRecord
from odradek.catalog.state import CatalogRequest, CatalogState, CreatePartitions, CreateTopic
from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode, KafkaError

MAX_CHANGE_BYTES = 8 << 20
"""The limit for the bytes of all records of one request, which are one batch. Kafka's Raft client has this limit."""
MAX_CHANGE_RECORDS = 10_000
"""The limit for the records of one request, except for changes of settings. Kafka's controller has this limit."""


class ChangeTooLarge(KafkaError):
    """A request has too many records, or its records have too many bytes. The whole request is refused."""


class Change:
    """The change of one request. Its records become one batch with one sync: a crash leaves all of them or none. They
    take effect when they are committed (``metadata/loader``).
    """

    def __init__(self, state: CatalogState, max_records: int | None = MAX_CHANGE_RECORDS) -> None:
        self.records: list[MetadataRecord] = []
        self.makes_logs = False
        """Whether the change adds partitions."""
        self._max_records = max_records
        self._state = state
        self.packed: list[bytes] = []
        self.on_end: Callable[[int], None] | None = None
        """Called with the offset of the newest record when the change is committed and published, or without records.
        """
        self._bytes = 0

    def add(self, request: CatalogRequest) -> Steps[None]:
        """Checks a part of the change and collects its records. Raises KafkaError if this part is refused.

        Raises ChangeTooLarge if the whole change has to be refused.
        """
        records_of_part = yield from self._state.generate(request)
        self.makes_logs |= isinstance(request, CreateTopic | CreatePartitions)
        for record in records_of_part:
            new = packed(record, len(self.records))
            self._bytes += sum(map(len, new))
            if len(self.records) == self._max_records:
                raise ChangeTooLarge(ErrorCode.policy_violation, "Unable to perform excessively large batch operation.")
            if self._bytes > MAX_CHANGE_BYTES:
                raise ChangeTooLarge(
                    ErrorCode.record_list_too_large,
                    f"The records of this request exceed the maximum batch size of {MAX_CHANGE_BYTES} bytes.",
                )
            self.packed += new
            self.records.append(record)
            yield None

    def check(self, request: CatalogRequest) -> None:
        """Raises KafkaError if the catalogue would refuse this part. Only for small parts: the check has no steps."""
        result_of(self._state.generate(request))


def packed(record: MetadataRecord, number: int) -> list[bytes]:
    """Packs a record. ``number`` is its number in the batch."""
    return pack_record(KeylessRecord(records.encode(record)), number)
