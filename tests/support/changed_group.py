"""A group whose offsets a monitor changes: three partitions of ten records, commits in two of them."""

from __future__ import annotations

from pathlib import Path

from odradek import Admin, TopicPartition
from odradek.client.config import ClientConfig
from odradek.core.ids import OffsetAndMetadata
from odradek.history.verdict_rules import VerdictRules
from odradek.lag.reset_targets import ResetTarget
from odradek.monitor.changes.change import MonitorChange
from odradek.monitor.changes.reset_request import ResetRequest
from odradek.monitor.changes.service import AnyPlan, Changes
from odradek.monitor.choices import ALLOWABLE
from odradek.monitor.disk.database import MonitorDatabase
from odradek.monitor.group_tracker import GroupTracker
from odradek.monitor.offsets_reader import OffsetsTopicReader, ReaderOptions
from support.brokers import unique
from support.publish import create_topic, numbers, publish

FIRST_MS = 1_700_000_000_000
METADATA = "noted by <me> 🙂"


class ChangedGroup:
    def __init__(self, bootstrap: str, directory: Path, group: str | None = None) -> None:
        self.bootstrap, self.directory = bootstrap, directory
        self.group, self.topic = unique("changed") if group is None else group, unique("changed")
        create_topic(bootstrap, self.topic, 3)
        for number in range(3):
            stamps = [FIRST_MS + place for place in range(10)]
            publish(bootstrap, self.topic, numbers(10), partition=number, timestamps_ms=stamps)
        self.parts = [TopicPartition(self.topic, number) for number in range(3)]
        self.admin = Admin(bootstrap)
        self.admin.alter_group_offsets(
            self.group, {self.parts[0]: OffsetAndMetadata(5, 0, METADATA), self.parts[1]: OffsetAndMetadata(7)}
        )
        self.open()

    def open(self, allowed: tuple[str, ...] = ALLOWABLE) -> Changes:
        self.database = MonitorDatabase(self.directory)
        self.changes = Changes(self.database, lambda: Admin(self.bootstrap), allowed)
        return self.changes

    def reader(self) -> OffsetsTopicReader:
        """A reader with the present view."""
        config = ClientConfig.of({"bootstrap_servers": self.bootstrap, "client_id": unique("reader")})
        made = OffsetsTopicReader(config, GroupTracker(VerdictRules()), ReaderOptions())
        made.step()
        return made

    def close(self) -> None:
        self.database.close()
        self.admin.close()

    def commits(self) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's commits in the topic of this test: groups with odd names are those of other tests, too."""
        return {tp: one for tp, one in self.admin.group_commits(self.group).items() if tp.topic == self.topic}

    def offsets(self) -> list[int | None]:
        found = self.commits()
        return [None if (one := found.get(tp)) is None else one.offset for tp in self.parts]

    def reset(self, target: str, value: str = "", csv: str = "") -> MonitorChange:
        topics = () if csv else (self.topic,)
        plan = self.changes.plan_reset(self.group, ResetRequest(ResetTarget(target), value, topics, csv))
        return self._applied(plan, "alice")

    def undo(self, change: MonitorChange) -> MonitorChange:
        plan = self.changes.plan_restore(change.id)
        assert plan is not None
        return self._applied(plan, "bob")

    def _applied(self, plan: AnyPlan, who: str) -> MonitorChange:
        change = self.changes.apply(plan.id, self.group, who)
        assert isinstance(change, MonitorChange)
        return change
