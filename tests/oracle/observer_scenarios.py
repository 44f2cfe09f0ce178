"""Scenarios of followers of the metadata log at its leader. See ``SCENARIOS`` and ``SNAPSHOT_SCENARIOS``."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from observer_conversation import CONTROLLER, TOPIC, TOPIC_ID, WAIT_MS, Observation

Scenario = Callable[[Observation], None]
ONE = UUID(int=5)


def records(o: Observation) -> None:
    o.fetch("from the start", last_epoch=0)
    o.fetch("from the second record", offset=1)
    o.fetch("from the last record", offset=o.end - 1)
    o.fetch("from the end", offset=o.end)
    o.fetch("as a follower", offset=1, replica=7, directory=ONE)
    o.fetch("no bytes", offset=1, max_bytes=0)
    o.fetch("a fetch session", offset=1, session_epoch=0)
    o.fetch("committed only", offset=1, isolation_level=1)


def versions_of_a_fetch(o: Observation) -> None:
    for version in range(4, 19):
        o.fetch(f"version {version}", version=version, offset=1)


def epochs_of_the_leader(o: Observation) -> None:
    for difference in (-1, 1, 100):
        o.fetch(f"the epoch {difference:+}", offset=1, leader_epoch=o.epoch + difference, last_epoch=0)
    o.fetch("no epoch", offset=1, leader_epoch=-1, last_epoch=-1)
    o.fetch("no epoch, and epoch 0 of the last record", offset=1, leader_epoch=-1, last_epoch=0)


def wrong_requests(o: Observation) -> None:
    part = o.message()["topics"][0]["partitions"][0]
    topic = {"topic_id": TOPIC_ID, "topic": TOPIC, "partitions": [part]}
    o.fetch("another cluster", cluster_id="another")
    o.fetch("no cluster", cluster_id=None)
    o.fetch("no topic", topics=[])
    o.fetch("the topic twice", topics=[topic, topic])
    o.fetch("another topic", topics=[topic | {"topic_id": UUID(int=2)}])
    o.fetch("no partition", topics=[topic | {"partitions": []}])
    o.fetch("two partitions", topics=[topic | {"partitions": [part, part | {"partition": 1}]}])
    o.fetch("another partition", part={"partition": 1})
    o.fetch("a negative offset", offset=-1)
    o.fetch("no epoch of the last record", last_epoch=-1)
    o.fetch("a last record after the leader", last_epoch=o.epoch + 1)
    o.fetch("a negative time", wait_ms=-1)
    o.fetch("the leader's own id", offset=1, replica=CONTROLLER)
    o.fetch("the leader's own id, with a directory", offset=1, replica=CONTROLLER, directory=ONE)


def diverging_logs(o: Observation) -> None:
    o.restart()
    o.restart()
    first = o.ends[o.epoch - 2]
    o.fetch("after the end", offset=o.end + 1)
    o.fetch("epoch 0", offset=3, last_epoch=0)
    o.fetch("the first epoch", offset=first, last_epoch=o.epoch - 2)
    o.fetch("after the first epoch", offset=first + 1, last_epoch=o.epoch - 2)
    o.fetch("at the end, in the first epoch", offset=o.end, last_epoch=o.epoch - 2)
    o.fetch("after the second epoch", offset=o.end, last_epoch=o.epoch - 1)
    o.fetch("the third epoch, within the first", offset=first, last_epoch=o.epoch)
    o.fetch("diverging, and would wait", offset=o.end + 1, wait_ms=5000)


def waits(o: Observation) -> None:
    o.fetch("no wait", offset=o.end, watermark=o.end)
    o.fetch("no watermark known", offset=o.end, watermark=-1, wait_ms=5000)
    o.fetch("an earlier watermark", offset=o.end, watermark=o.end - 1, wait_ms=5000)
    o.fetch("all known", offset=o.end, watermark=o.end, wait_ms=WAIT_MS)
    o.fetch("a watermark that is not said", offset=o.end, wait_ms=WAIT_MS)
    o.fetch("a version without a watermark", offset=o.end, wait_ms=WAIT_MS, version=17)
    o.fetch("an error", offset=o.end, leader_epoch=o.epoch + 1, watermark=o.end, wait_ms=5000)
    o.fetch("records", offset=1, watermark=o.end, wait_ms=5000)


def a_record_during_a_wait(o: Observation) -> None:
    end = o.end
    o.fetch_during("all known", lambda: o.register(1), offset=end, watermark=end, wait_ms=20_000, replica=7)
    o.settle()
    o.fetch("the new record", offset=end, last_epoch=o.epoch)


def the_quorum(o: Observation) -> None:
    o.describe("without followers")
    o.fetch("as 7, at the end", offset=o.end, replica=7, directory=ONE)
    o.fetch("as 8, behind", offset=1, replica=8, directory=UUID(int=6))
    o.fetch("as 9, diverging", offset=o.end + 5, replica=9, directory=UUID(int=7))
    o.fetch("as a reader", offset=1)
    for version in (0, 1, 2):
        o.describe(f"version {version}", version=version)
    o.fetch("as 8, later", offset=o.end, replica=8, directory=UUID(int=6))
    o.fetch("as 7, from another directory", offset=2, replica=7, directory=UUID(int=8))
    o.fetch("as 7, back", offset=1, replica=7, directory=ONE)
    o.describe("after more fetches")
    o.restart()
    o.describe("after a restart")


# --- snapshots --------------------------------------------------------------------------------------------------


def a_snapshot(o: Observation) -> None:
    o.make_snapshot()
    o.fetch("an empty log", last_epoch=0)
    o.fetch("an empty log, as a follower", last_epoch=0, replica=7, directory=ONE)
    o.fetch("an old epoch", offset=1, last_epoch=0)
    o.fetch("the present epoch", offset=1)
    o.fetch("the end", offset=o.end)
    o.fetch("an empty log that would wait", last_epoch=0, wait_ms=5000)
    o.describe("a follower that needs a snapshot")


def parts_of_a_snapshot(o: Observation) -> None:
    o.make_snapshot()
    whole = o.fetch_snapshot("all")
    o.note_snapshot(whole)
    parts = [o.fetch_snapshot("a part", max_bytes=100), o.fetch_snapshot("more", part={"position": 100}, max_bytes=50)]
    parts.append(o.fetch_snapshot("the rest", part={"position": 150}))
    o.steps.append({"equal": b"".join(parts) == whole})
    o.fetch_snapshot("no bytes", max_bytes=0)
    o.fetch_snapshot("version 0", version=0)
    o.fetch_snapshot("the last byte", part={"position": o.size - 1})


def wrong_requests_for_snapshots(o: Observation) -> None:
    o.make_snapshot()
    o.fetch_snapshot("all")
    o.fetch_snapshot("at the end", part={"position": o.size})
    o.fetch_snapshot("far behind the end", part={"position": 1 << 40})
    o.fetch_snapshot("before the start", part={"position": -1})
    for name, other in (("end_offset", 1), ("epoch", 99), ("end_offset", -1)):
        o.fetch_snapshot(f"{name} {other}", part={"snapshot_id": o.snapshot | {name: other}})
    o.fetch_snapshot("the first snapshot", part={"snapshot_id": {"end_offset": 0, "epoch": 0}})
    o.fetch_snapshot("an earlier epoch", leader_epoch=o.epoch - 1)
    o.fetch_snapshot("a later epoch", leader_epoch=o.epoch + 1)
    o.fetch_snapshot("no epoch", leader_epoch=-1)
    o.fetch_snapshot("another cluster", cluster_id="another")
    o.fetch_snapshot("no cluster", cluster_id=None)
    part = o.snapshot_message()["topics"][0]["partitions"][0]
    o.fetch_snapshot("another topic", topics=[{"name": "t", "partitions": [part]}])
    o.fetch_snapshot("another partition", part={"partition": 3})


SCENARIOS: tuple[Scenario, ...] = (
    records, versions_of_a_fetch, epochs_of_the_leader, wrong_requests, diverging_logs, waits, a_record_during_a_wait,
    the_quorum,
)  # fmt: skip
SNAPSHOT_SCENARIOS: tuple[Scenario, ...] = (a_snapshot, parts_of_a_snapshot, wrong_requests_for_snapshots)
"""With a controller that writes a snapshot at each record."""
