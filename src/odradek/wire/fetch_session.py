"""A fetch session (KIP-227) between a client and one broker.

The first request names all partitions; later requests name only the changes. The broker's replies leave out the
partitions without new data. ``FetchSession`` keeps the partitions that the broker has in the session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from odradek.core.errors import ErrorCode
from odradek.core.ids import INITIAL_EPOCH, TopicPartition
from odradek.wire.fetch_messages import FetchPartition, FetchRequestData

NO_SESSION = 0


@dataclass(slots=True)
class FetchSession:
    session_id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH
    _known: Mapping[TopicPartition, FetchPartition] = field(default_factory=dict)

    def request(self, wanted: Mapping[TopicPartition, FetchPartition], *, by_id: bool = True) -> FetchRequestData:
        """Returns the next request; ``wanted`` has all partitions to read. ``by_id``: the request has topic ids."""
        known, self._known = self._known, wanted
        if self.epoch == INITIAL_EPOCH:
            return FetchRequestData(wanted, (), self.session_id, INITIAL_EPOCH)
        changed = {tp: one for tp, one in wanted.items() if known.get(tp) != one}
        # A broker adds the new partitions before it removes the forgotten ones. Without topic ids it would therefore
        # remove the partitions of a recreated topic, too.
        forgotten = [
            (tp, one.topic_id)
            for tp, one in known.items()
            if tp not in wanted or (by_id and wanted[tp].topic_id != one.topic_id)
        ]
        return FetchRequestData(changed, forgotten, self.session_id, self.epoch)

    def on_reply(self, error_code: ErrorCode, session_id: int) -> bool:
        """Applies the reply's session fields. Returns False after an error: the next request then starts a session."""
        if error_code is not ErrorCode.none:
            self.restart()
            if error_code is ErrorCode.fetch_session_id_not_found:
                self.session_id = NO_SESSION
            return False
        if session_id == NO_SESSION:  # the broker keeps no session: the next request is a full one
            self.restart()
            self.session_id = NO_SESSION
        elif self.epoch == INITIAL_EPOCH:
            self.session_id, self.epoch = session_id, 1
        else:
            self.epoch = self.epoch + 1 if self.epoch < 0x7FFFFFFF else 1
        return True

    def restart(self) -> None:
        """Makes the next request start a new session. That request has the old session's id, to end the old session."""
        self.epoch = INITIAL_EPOCH
        self._known = {}
