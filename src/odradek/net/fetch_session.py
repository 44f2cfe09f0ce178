"""A fetch session (KIP-227) between a reader and one broker.

The first request names all partitions, later ones only what changed, and the broker leaves out what has nothing new.
``FetchSession`` knows what the broker knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.net.fetch_wire import FetchPartition, FetchRequest

NO_SESSION = 0
INITIAL_EPOCH = 0


@dataclass(slots=True)
class FetchSession:
    session_id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH
    _known: Mapping[TopicPartition, FetchPartition] = field(default_factory=dict)

    def request(self, wanted: Mapping[TopicPartition, FetchPartition], *, by_id: bool = True) -> FetchRequest:
        """What to ask, where ``wanted`` is all there is to read. ``by_id``: the request names topics so."""
        known, self._known = self._known, wanted
        if self.epoch == INITIAL_EPOCH:
            return FetchRequest(wanted, (), self.session_id, INITIAL_EPOCH)
        changed = {tp: one for tp, one in wanted.items() if known.get(tp) != one}
        # A broker forgets after it has taken what is new: by its name, a topic made anew would be forgotten, too.
        forgotten = [
            (tp, one.topic_id)
            for tp, one in known.items()
            if tp not in wanted or (by_id and wanted[tp].topic_id != one.topic_id)
        ]
        return FetchRequest(changed, forgotten, self.session_id, self.epoch)

    def on_reply(self, error_code: ErrorCode, session_id: int) -> bool:
        """Whether the reply counts; after a refusal the next request begins a session anew."""
        if error_code is not ErrorCode.none:
            self.begin_anew()
            if error_code is ErrorCode.fetch_session_id_not_found:
                self.session_id = NO_SESSION
            return False
        if session_id == NO_SESSION:  # the broker keeps none, or no more: full requests
            self.begin_anew()
            self.session_id = NO_SESSION
        elif self.epoch == INITIAL_EPOCH:
            self.session_id, self.epoch = session_id, 1
        else:
            self.epoch = self.epoch + 1 if self.epoch < 0x7FFFFFFF else 1
        return True

    def begin_anew(self) -> None:
        """With the next request, which names the old session, if there is one, for the broker to end it."""
        self.epoch = INITIAL_EPOCH
        self._known = {}
