"""A reader with one view and no cluster, and the monitor's HTTP service in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from odradek.core.ids import TopicPartition
from odradek.history.records.columns import NO_MEMBER
from odradek.history.verdict_rules import VerdictRules
from odradek.monitor.group_sums import LagSeries
from odradek.monitor.group_tracker import GroupTracker, ListedState, LogBoundsRow
from odradek.monitor.offsets_reader import Trouble
from support.offset_entries import STEP_MS, batch_of, entry

ODD_NAMES = ("a/b", "%2F", "<b>bold</b><script>alert(1)</script>", "🙂", " ", "..", "", "\u202eright-to-left")
START_MS = 1_790_000_000_000
ORDERS = [TopicPartition("orders", number) for number in range(3)]


def member_entry(group: str, place: int, ms: int, members: int, generation: int) -> dict[str, Any]:
    names = [NO_MEMBER | {"member_id": f"m{number}", "subscription": ["orders"]} for number in range(members)]
    return entry(group, TopicPartition("", 0), (0, place), ms, None, None) | {
        "kind": "group_metadata", "topic": None, "partition": None, "is_tombstone": False, "generation": generation,
        "protocol_type": "consumer", "state_timestamp": ms * 1000, "members": names,
    }  # fmt: skip


class ViewFollower:
    """A group of each status, groups with odd names, and ``more`` groups; eight polls."""

    def __init__(self, more: int = 0) -> None:
        self.tracker = GroupTracker(VerdictRules())
        self.access, self.lags = threading.Lock(), LagSeries()
        self.trouble: Trouble | None = None
        self.source, self.source_reason, self.poll_ms = "topic", "", 5
        self.groups: Any = None
        self._place, self._polls = 0, 0
        self._more = [f"group-{number:05d}" for number in range(more)]
        self.tracker.set_groups({"idle": ListedState("Empty", "classic")})
        for _ in range(8):
            self.poll()

    @property
    def is_ready(self) -> bool:
        return self.trouble is None and self.groups is not None

    def commit(self, group: str, number: int, ms: int, offset: int) -> None:
        self._place += 1
        self.tracker.add_entries(batch_of([entry(group, ORDERS[number], (0, self._place), ms, offset, None)]))

    def poll(self) -> None:
        """Commits of ten seconds, and the poll that follows them."""
        ms = START_MS + self._polls * 10 * STEP_MS
        end = 1_000 + 500 * self._polls
        if self._polls in (1, 4):
            self._place += 1
            members = 2 if self._polls == 1 else 0
            self.tracker.add_entries(batch_of([member_entry("reset", self._place, ms, members, self._polls)]))
        for number in range(3):
            self.commit("billing", number, ms, end - 20 * number)
            self.commit("slow", number, ms, 100 * self._polls)
            if self._polls < 4 or self._polls == 6:
                self.commit("reset", number, ms, end if self._polls < 4 else 50 + number)
        for name in (*ODD_NAMES, *(self._more if self._polls == 0 else ())):
            self.commit(name, 0, ms, end)
        self._polls += 1
        self.tracker.add_bounds(ms + STEP_MS, {tp: LogBoundsRow(20, end) for tp in ORDERS}, {})
        self.groups = self.tracker.groups(ms + STEP_MS)
        self.lags.add(self.groups)


def pictured_view() -> ViewFollower:
    """The groups in the pictures of docs/monitor.md."""
    states = {"billing": "Stable", "slow": "Stable", "reset": "Empty"}
    reader = ViewFollower(more=12)
    reader.tracker.set_groups({name: ListedState(state, "classic") for name, state in states.items()})
    for name in reader.tracker.group_names():
        if name not in states and not name.startswith("group-"):
            reader.tracker.forget_group(name)
    reader.groups = reader.tracker.groups(reader.tracker.last_poll_ms)
    return reader


@contextmanager
def served(
    reader: Any, token: str = "", changes: Any = None, change_tokens: Mapping[str, str] | None = None,
    incidents: Any = None,
) -> Iterator[str]:  # fmt: skip
    """Serves the view on a free port of this process. Yields the address."""
    import uvicorn

    from odradek.cli.monitor.monitor import open_port
    from odradek.monitor.http.metrics import MetricsOptions
    from odradek.monitor.http.service import Service, ServiceOptions

    hosts = frozenset({"127.0.0.1", "localhost"})
    options = ServiceOptions(MetricsOptions("main"), hosts, token, ("127.0.0.1:9092",), change_tokens or {})
    app: Any = Service(reader, options, incidents, changes).app()
    server = uvicorn.Server(
        uvicorn.Config(app, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=1)
    )
    listening = open_port("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listening.close()
