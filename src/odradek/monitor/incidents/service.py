"""The incidents of a running monitor: the store, the observer of the views, and a thread for each webhook."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from odradek.core.counts import counted
from odradek.monitor.disk.database import MonitorDatabase
from odradek.monitor.group_sums import GroupColumns
from odradek.monitor.group_tracker import GroupTracker
from odradek.monitor.incidents.bodies import Message, incident_values
from odradek.monitor.incidents.observer import IncidentObserver
from odradek.monitor.incidents.sender import HookSender
from odradek.monitor.incidents.store import IncidentStore, PendingDelivery
from odradek.monitor.incidents.webhook_file import Webhooks

logger = logging.getLogger("odradek.monitor")

Json = dict[str, Any]
MOST_CLOSED = 1_000
"""The most closed incidents in one reply."""


class Incidents:
    """The incidents in a monitor's file. ``keep_ms``: for how long closed ones are kept. Raises StoreFailed."""

    def __init__(
        self,
        database: MonitorDatabase,
        webhooks: Webhooks,
        cluster: str,
        *,
        keep_ms: int,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._store = IncidentStore(database)
        self._cluster, self._monitor_url = cluster, webhooks.monitor_url
        self._repeats = {hook.name: hook.rule.repeat_ms for hook in webhooks.hooks}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        dropped = self._store.drop_deliveries_of_others([hook.name for hook in webhooks.hooks])
        if dropped:
            logger.warning("dropped %s of webhooks that are configured no more", counted(dropped, "announcement"))
        self.senders = [HookSender(hook, self._store, self._message) for hook in webhooks.hooks]
        rules = [hook.rule for hook in webhooks.hooks]
        self.observer = IncidentObserver(self._store, rules, self._wake, new_id=new_id, keep_ms=keep_ms)

    def start(self) -> None:
        """Begins to deliver."""
        for sender in self.senders:
            thread = threading.Thread(
                target=sender.run, args=(self._stop,), name=f"odradek-webhook-{sender.hook.name}", daemon=True
            )
            thread.start()
            self._threads.append(thread)

    def close(self) -> None:
        """Ends the threads. What is not delivered is delivered after the next start."""
        self._stop.set()
        self._wake()
        deadline = time.monotonic() + 1
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def on_poll(self, tracker: GroupTracker, groups: GroupColumns) -> None:
        """Records what a poll shows. Hold the reader's lock."""
        self.observer.on_poll(tracker, groups)

    def rows(self, *, closed: int) -> list[Json]:
        """Returns the open incidents, the oldest first, then so many closed ones, the newest first. Raises
        StoreFailed."""
        closed_ones = self._store.closed_incidents(closed) if closed else []
        return [incident_values(one) for one in (*self._store.open_incidents(), *closed_ones)]

    def row(self, incident_id: str) -> Json | None:
        """Returns an incident; None if there is none with this id. Raises StoreFailed."""
        found = self._store.incident(incident_id)
        return None if found is None else incident_values(found)

    def pending(self) -> dict[str, int]:
        """Returns the number of announcements to deliver, for each webhook. Raises StoreFailed."""
        return {sender.hook.name: 0 for sender in self.senders} | self._store.pending()

    def _wake(self) -> None:
        for sender in self.senders:
            sender.wake()

    def _message(self, delivery: PendingDelivery) -> Message:
        return Message(
            self._cluster, self._monitor_url, delivery.event, delivery.incident, delivery.number, delivery.made_ms,
            self._repeats[delivery.hook],
        )  # fmt: skip
