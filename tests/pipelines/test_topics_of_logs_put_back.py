"""An exactly-once replay into a topic sees that a log was put back from an older copy since its last transaction.

The log of one partition is put back, as that of one of several brokers, or of one of several disks: the target and the
progress of the replay stay. Before, the next run left out the new records at offsets of the former log, and said that
nothing was left to send.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ingest_runs import ends
from restored_broker import Restored, send
from support.publish import create_topic
from transaction_runs import committed_records

from odradek.client.admin import Admin
from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition
from odradek.pipelines import Replayed, replay, transform
from odradek.pipelines.replays import transactions
from odradek.pipelines.replays.progress import ReplayRefused
from odradek.spark.offsets.data_loss import DataLoss


class ReplayRuns:
    """Replays of the topic of a broker that is put back. 100 records of partition 0 and 10 of partition 1 are sent."""

    def __init__(self, restored: Restored, spark: Any) -> None:
        self.restored, self.spark = restored, spark
        create_topic(restored.bootstrap, "copies", 3)
        send(restored.bootstrap, "events", 70)
        assert self.run().rows == 110

    def run(self, **given: Any) -> Replayed:
        chosen = given if "offsets" in given else {"topics": "events", **given}
        done = replay(self.restored.bootstrap, to_topic="copies", exactly_once=True, spark=self.spark, **chosen)
        assert isinstance(done, Replayed)
        return done

    def sent(self) -> list[str]:
        """Where the records of the target are from."""
        records = committed_records(self.restored.bootstrap, "copies")
        return sorted(dict(one.headers)["odradek-replayed-from"].decode() for one in records)

    def sent_and_others(self) -> int:
        return len(committed_records(self.restored.bootstrap, "copies"))

    def ends_of_copies(self) -> dict[TopicPartition, int]:
        with Admin(self.restored.bootstrap) as admin:
            return ends(admin, "copies")

    def refusal(self) -> str:
        before = self.sent()
        with pytest.raises(DataLoss) as failed:
            self.run()
        assert self.sent() == before
        assert "\n" not in str(failed.value)
        return str(failed.value)


def events(start: int, end: int, partition: int = 0) -> list[str]:
    return [f"events-{partition}@{at}" for at in range(start, end)]


@pytest.fixture
def runs(restored: Restored, spark: Any) -> ReplayRuns:
    return ReplayRuns(restored, spark)


@pytest.mark.parametrize("again", [pytest.param(70, marks=pytest.mark.slow), 120])
def test_the_records_of_a_log_that_was_put_back_are_not_left_out(runs: ReplayRuns, again: int) -> None:
    """With 70 new records the log ends where the former one did."""
    runs.restored.put_back("events-0")
    send(runs.restored.bootstrap, "events", again)
    line = runs.refusal()
    assert "events-0: it was read up to offset 100, and the log has another batch of records at offset" in line
    assert "replay from there with other options (--from, or --offsets)" in line
    first = [*events(0, 100), *events(0, 10, 1)]
    assert runs.run(offsets=f'{{"events":{{"0":[30,{30 + again}]}}}}').rows == again
    assert runs.sent() == sorted([*first, *events(30, 30 + again)])
    assert runs.run(options={"failOnDataLoss": "false"}).rows == again - 70
    if again > 70:
        assert runs.run().already, "the last batch of the new log is noted"


@pytest.mark.slow
def test_a_log_that_ends_before_what_was_sent_is_named(runs: ReplayRuns) -> None:
    runs.restored.put_back("events-0")
    send(runs.restored.bootstrap, "events", 20)
    says = "events-0: earlier runs of this replay have read it up to offset 100, and it ends at 50: the data directory"
    assert says in runs.refusal()


@pytest.mark.slow
def test_a_progress_without_the_last_batch_is_compared_by_the_records(
    restored: Restored, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version has not noted it."""
    monkeypatch.setattr(transactions, "_tails", lambda run, ranges, ids: {})
    runs = ReplayRuns(restored, spark)
    send(restored.bootstrap, "events", 5)
    assert runs.run().rows == 5
    restored.put_back("events-0")
    send(restored.bootstrap, "events", 120)
    says = "events-0: it was read up to offset 105, and the log has another record at offset 104 now than what was sent"
    assert says in runs.refusal()


def test_a_broker_that_is_put_back_whole_has_each_record_of_its_log_once(runs: ReplayRuns) -> None:
    """The target and the progress are put back with the log."""
    runs.restored.take_copy()
    send(runs.restored.bootstrap, "events", 40)
    assert runs.run().rows == 40
    runs.restored.put_back()
    send(runs.restored.bootstrap, "events", 60)
    assert runs.run().rows == 60
    assert runs.sent() == sorted([*events(0, 160), *events(0, 10, 1)])


@pytest.mark.parametrize("is_sent_again", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_progress_that_is_older_than_the_target_is_refused(runs: ReplayRuns, is_sent_again: bool) -> None:
    """The offsets topic is put back, and the target is not. Before, the run sent 40 records twice."""
    with Admin(runs.restored.bootstrap) as admin:
        (group,) = [one.group_id for one in admin.list_groups() if one.group_id.startswith("odradek-replay-")]
    if is_sent_again:
        assert runs.run(again=True).rows == 110
    with Admin(runs.restored.bootstrap) as admin:
        older = admin.list_group_offsets(group)
        send(runs.restored.bootstrap, "events", 40)
        assert runs.run().rows == 40
        admin.alter_group_offsets(group, older)
    before = runs.sent()
    with pytest.raises(
        ReplayRefused, match=rf"group {group}, .* is older than the target, which has events-0@1\d\d in"
    ):
        runs.run()
    assert runs.sent() == before
    assert runs.run(again=True).rows == 150
    assert runs.sent() == sorted([*before, *events(0, 140), *events(0, 10, 1)])
    assert runs.run().already


@pytest.mark.slow
@pytest.mark.parametrize("log", ["events-0", ""])
def test_a_transform_stops_at_a_log_that_was_put_back(log: str, restored: Restored, spark: Any, tmp_path: Path) -> None:
    """The leader epochs of the log show it; if the whole directory is put back, the number of the last micro-batch."""
    bootstrap = restored.bootstrap
    create_topic(bootstrap, "rows", 3)
    given: dict[str, Any] = {"topics": "events", "group": "copy", "to_topic": "rows", "spark": spark}
    given |= {"sql": "SELECT value FROM records"}
    checkpoint = tmp_path / "first"
    assert transform(bootstrap, checkpoint=checkpoint, **given).rows == 40
    restored.take_copy()
    send(bootstrap, "events", 70)
    assert transform(bootstrap, checkpoint=checkpoint, **given).rows == 70
    restored.put_back(log)
    send(bootstrap, "events", 120)
    before = len(committed_records(bootstrap, "rows"))
    with pytest.raises(OdradekError) as failed:
        transform(bootstrap, checkpoint=checkpoint, **given)
    assert "\n" not in str(failed.value)
    assert "put back" in str(failed.value) or "diverges at offset 30" in str(failed.value)
    assert len(committed_records(bootstrap, "rows")) == before
    assert log == "" or "or its broker's data was put back from an older copy" in str(failed.value)
    if not log:  # the way on of the line
        assert transform(bootstrap, checkpoint=tmp_path / "second", **given).rows == 120


@pytest.mark.slow
def test_a_target_that_ends_before_the_last_transaction_is_refused(runs: ReplayRuns) -> None:
    """Before, the run said that nothing was left to send, and the target lacked 40 records."""
    runs.restored.take_copy()
    for _ in range(2):
        send(runs.restored.bootstrap, "events", 40)
        assert runs.run().rows == 40
    for partition in range(3):
        runs.restored.put_back(f"copies-{partition}")
    with pytest.raises(ReplayRefused, match=r"copies-\d ends at \d+, and had \d+ when this replay last sent records"):
        runs.run()
    assert runs.run(again=True).rows == 190


@pytest.mark.parametrize("lost", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_a_target_that_was_put_back_and_has_grown_is_refused(runs: ReplayRuns, lost: int) -> None:
    """Another producer has written more records since than the target has lost, also if that is only the last
    transaction. Before, the run said that nothing was left to send."""
    runs.restored.take_copy()
    send(runs.restored.bootstrap, "events", lost)
    assert runs.run().rows == lost
    for partition in range(3):
        runs.restored.put_back(f"copies-{partition}")
        send(runs.restored.bootstrap, "copies", 60, partition)
    before = runs.sent_and_others()
    with pytest.raises(ReplayRefused, match=r"copies-\d has another batch of records at offset \d+ than when") as said:
        runs.run()
    assert "\n" not in str(said.value)
    assert runs.sent_and_others() == before
    assert runs.run(again=True).rows == 110 + lost
    assert runs.run().already, "the batches of the target are noted again"


@pytest.mark.slow
def test_a_target_that_compaction_or_retention_has_changed_is_no_older_copy(runs: ReplayRuns) -> None:
    ends = runs.ends_of_copies()
    with Admin(runs.restored.bootstrap) as admin:
        admin.delete_records(ends)
    assert runs.run().already
    send(runs.restored.bootstrap, "events", 5)
    assert runs.run().rows == 5
