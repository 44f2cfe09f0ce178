"""An observer of the metadata log: what it asks the leader for next, and what a reply changes in its own log.

The observer fetches from the end of its log. The leader sends records, or says where the logs diverge, or that a
snapshot comes first, which the observer reads in parts. A record is committed when it is below the high watermark of
the leader. Nothing else may be applied. As in Kafka, an observer that would have to give up committed records ends.

The only voter of a log serves committed records alone, and its epoch only grows. So an observer of such a leader
(``is_strict``) ends, too, if the leader lacks any of its records, or is in an older epoch: the leader's log is then an
older copy. Such a leader begins an epoch a second time that the observer knows, and its log may even be longer. So at
its start, and over each new connection, the observer first reads its own last batch again, and compares the bytes.

One request is in flight at a time: ``next_request`` returns it when it is due, ``next_ms`` says when that is. Time is
passed in, in milliseconds of a clock that only goes forward.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from odradek.cluster.metadata_log.observers import LogPlace
from odradek.cluster.request_in_flight import RequestInFlight
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_NODE, NO_OFFSET

MAX_WAIT_MS = 500
"""The leader answers a fetch after this time, even without news."""
TIMEOUT_MS = 2_000
"""A request without a reply is given up after this time: controller.quorum.request.timeout.ms."""
FIRST_RETRY_MS, LAST_RETRY_MS = 50, 1_000
IDLE_MS = 10
"""The pause after a reply without news that the leader has sent at once."""
_OLDER_COPY = (
    "its folder is an older copy. Stop all nodes, and put back its newest folder, or the copies of all folders that "
    "were made at the same stop of the cluster"
)
_LOST_SNAPSHOT = (ErrorCode.snapshot_not_found, ErrorCode.position_out_of_range)


class LogCopy(Protocol):
    """The log of the observer. All methods raise KafkaError if it cannot be written."""

    @property
    def end(self) -> LogPlace:
        """The end of the log, with the epoch of its last record; (0, 0) for an empty log."""

    def end_of_epoch(self, epoch: int) -> LogPlace | None:
        """Returns the largest known epoch up to ``epoch``, and its end; None for an epoch after the newest."""

    def before_last_batch(self) -> LogPlace | None:
        """Returns the end of what is before the last batch; None if the log has no batch after the snapshot that it
        begins with. ``begins_with_last_batch`` compares with this batch."""

    def begins_with_last_batch(self, data: bytes) -> bool:
        """Returns whether these batches begin with the last one of this log, byte for byte. Raises ValueError if they
        are damaged."""

    def append_batches(self, data: bytes) -> None:
        """Appends batches. Raises ValueError, and appends nothing, if they do not follow the end of the log."""

    def truncate_to(self, offset: int) -> None:
        """Removes the batch with this offset and all later ones."""

    def begin_download(self, place: LogPlace) -> None:
        """Begins to keep the parts of a snapshot. Parts of an earlier one are dropped."""

    def add_part(self, data: bytes) -> None: ...

    def end_download(self, place: LogPlace) -> None:
        """Keeps the snapshot, and replaces the log by an empty one at its end. Raises ValueError for a damaged one."""


class RecordsRequest(NamedTuple):
    """A fetch from the end of the observer's log. ``high_watermark``: the offset up to which all is known to be
    committed, −1 if none is known."""

    leader_epoch: int
    offset: int
    last_epoch: int
    high_watermark: int


class PartRequest(NamedTuple):
    """A request for the part of a snapshot from ``position`` on."""

    leader_epoch: int
    snapshot: LogPlace
    position: int


class RecordsReply(NamedTuple):
    """The leader's reply to a fetch. ``connection``: which of the connections to the leader it came by."""

    error: ErrorCode
    leader: int
    leader_epoch: int
    high_watermark: int = NO_OFFSET
    records: bytes = b""
    diverging: LogPlace | None = None
    snapshot: LogPlace | None = None
    connection: int = 0


class PartReply(NamedTuple):
    """A part of a snapshot. ``size``: that of the whole snapshot."""

    error: ErrorCode
    leader: int
    leader_epoch: int
    size: int = 0
    position: int = 0
    data: bytes = b""


class LogObserver:
    """One observer. ``epoch``: the newest leader epoch that it knows. ``committed``: the offset up to which all is
    known to be committed, −1 if none is known.

    ``failure``: why the observer has to end. ``snapshots``: how many snapshots it has taken: then the records before
    their end were not applied one by one.
    """

    def __init__(self, log: LogCopy, epoch: int, committed: int, now_ms: int, *, is_strict: bool = False) -> None:
        self.epoch = epoch
        self.leader = NO_NODE
        self.committed = committed
        self.failure = ""
        self.snapshots = 0
        self._log = log
        self._download: LogPlace | None = None
        self._position = 0
        self._is_strict = is_strict
        self._is_checked = not is_strict
        """Whether the leader has the last batch of this log, as far as is known."""
        self._compared: LogPlace | None = None
        """Where the fetch in flight reads the last batch again."""
        self._connection = 0
        self._request = RequestInFlight(now_ms, TIMEOUT_MS, FIRST_RETRY_MS, LAST_RETRY_MS)

    # --- requests -----------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The number of the request in flight: a reply belongs to a request only if it names this number."""
        return self._request.number

    @property
    def next_ms(self) -> int:
        """When ``next_request`` has to be called again, unless a reply comes before."""
        return self._request.next_ms

    def next_request(self, now_ms: int) -> RecordsRequest | PartRequest | None:
        """Returns the request that is to be sent now."""
        if self.failure:
            return None
        if self._request.is_over(now_ms):
            self._fail(now_ms)
        if not self._request.begin(now_ms):
            return None
        if self._download is not None:
            return PartRequest(self.epoch, self._download, self._position)
        try:
            self._compared = None if self._is_checked else self._log.before_last_batch()
        except KafkaError:
            self._fail(now_ms)
            return None
        end = self._compared or self._log.end
        return RecordsRequest(self.epoch, end.end_offset, end.epoch, self.committed)

    # --- replies ------------------------------------------------------------------------------------------------

    def on_failed(self, number: int, now_ms: int) -> None:
        """Notes that no reply will come, or none that can be read."""
        if self._take(number):
            self._fail(now_ms)

    def on_records(self, number: int, reply: RecordsReply, now_ms: int) -> None:
        """Takes the reply to a fetch."""
        sent_ms = self._request.sent_ms or 0
        if not self._take(number) or not self._follow(reply, now_ms):
            return
        try:
            if self._is_strict and not self._compare(reply):
                self._request.due_ms = now_ms
                return
            is_news = self._take_records(reply)
        except (KafkaError, ValueError):
            self._fail(now_ms)
            return
        self._request.failures = 0
        self._request.due_ms = now_ms if is_news or now_ms - sent_ms >= MAX_WAIT_MS // 2 else now_ms + IDLE_MS

    def _compare(self, reply: RecordsReply) -> bool:
        """Compares the last batch with that of the leader. Returns whether the reply is one to an ordinary fetch, by a
        connection over which both were equal."""
        place = self._compared
        is_new, self._connection = reply.connection != self._connection, reply.connection
        if place is None:
            self._is_checked = not is_new or self._log.before_last_batch() is None
            return self._is_checked
        if reply.snapshot is not None and reply.snapshot.end_offset > place.end_offset:
            self._is_checked = True  # the leader does not keep the batch any more
        elif self._is_same(reply):
            self._is_checked = True
        else:
            self.failure = (
                f"{self._leader()} has other records than this broker has copied from it, from offset "
                f"{place.end_offset} on: {_OLDER_COPY}"
            )
        return False

    def _is_same(self, reply: RecordsReply) -> bool:
        return reply.diverging is None and reply.snapshot is None and self._log.begins_with_last_batch(reply.records)

    def _leader(self) -> str:
        return f"the leader of the metadata log, node {self.leader},"

    def _take_records(self, reply: RecordsReply) -> bool:
        """Returns whether the reply has changed anything."""
        place = reply.diverging or reply.snapshot
        kept = max(self.committed, self._log.end.end_offset) if self._is_strict else self.committed
        if place is not None and place.end_offset < kept:
            self.failure = (
                f"{self._leader()} has lost committed records: its log "
                f"{'diverges' if reply.diverging else 'begins with a snapshot'} at offset {place.end_offset}, and the "
                f"records before offset {kept} were committed: {_OLDER_COPY}"
            )
            return False
        if reply.diverging is not None:
            self._log.truncate_to(self._common_end(reply.diverging))
            return True
        if reply.snapshot is not None:
            self._log.begin_download(reply.snapshot)
            self._download, self._position = reply.snapshot, 0
            return True
        if reply.records:
            self._log.append_batches(reply.records)
        before = self.committed
        self.committed = max(before, min(reply.high_watermark, self._log.end.end_offset))
        return bool(reply.records) or self.committed > before

    def _common_end(self, diverging: LogPlace) -> int:
        """Returns where the log has to be cut off: the leader's end of the epoch, or the end of an older epoch here."""
        if diverging.epoch == 0:
            return diverging.end_offset
        own = self._log.end_of_epoch(diverging.epoch) or self._log.end
        return min(own.end_offset, diverging.end_offset) if own.epoch == diverging.epoch else own.end_offset

    def on_part(self, number: int, reply: PartReply, now_ms: int) -> None:
        """Takes the reply to a request for a part of a snapshot."""
        if not self._take(number) or not self._follow(reply, now_ms):
            return
        place = self._download
        assert place is not None
        if reply.position != self._position or not reply.data or self._position + len(reply.data) > reply.size:
            self._restart_download(now_ms)
            return
        try:
            self._log.add_part(reply.data)
            self._position += len(reply.data)
            if self._position == reply.size:
                self._log.end_download(place)
                self._download = None
                self.committed = max(self.committed, place.end_offset)
                self.snapshots += 1
        except (KafkaError, ValueError):
            self._restart_download(now_ms)
            return
        self._request.failures = 0
        self._request.due_ms = now_ms

    def _restart_download(self, now_ms: int) -> None:
        """Gives a snapshot up: the next fetch learns which one is present."""
        self._download = None
        self._fail(now_ms)

    def _follow(self, reply: RecordsReply | PartReply, now_ms: int) -> bool:
        """Learns the epoch of the leader. Returns whether the content of the reply counts."""
        if reply.leader_epoch > self.epoch:
            self.epoch, self.leader = reply.leader_epoch, reply.leader
            self._request.due_ms = now_ms  # ask again, in this epoch
            return False
        if reply.error in _LOST_SNAPSHOT:
            self._restart_download(now_ms)
            return False
        if self._is_strict and 0 <= reply.leader_epoch < self.epoch:
            self.leader = reply.leader
            self.failure = (
                f"{self._leader()} is in the leader epoch {reply.leader_epoch}, and this broker has followed the epoch "
                f"{self.epoch}: {_OLDER_COPY}"
            )
            return False
        if reply.error or reply.leader_epoch < self.epoch:
            self._fail(now_ms)
            return False
        self.leader = reply.leader
        return True

    def _take(self, number: int) -> bool:
        """Ends the request in flight if the reply belongs to it."""
        return not self.failure and self._request.take(number)

    def _fail(self, now_ms: int) -> None:
        self._request.due_ms = now_ms + self._request.fail()
