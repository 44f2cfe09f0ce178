"""The Java samples of the articles, run unchanged by Apache Kafka's client with our broker.

``java/ArticleSamples.java`` has the samples, and says what it adds to them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from support.brokers import eventually
from support.jvm import java_classes, kafka_command
from support.killed_programs import KilledProgram, commits_of, kill_at_8_seconds, repeated
from support.publish import commit, committed, create_topic, numbers, publish

import odradek

GROUP = "test"
Start = Callable[..., KilledProgram]


@pytest.fixture
def broker() -> Iterator[odradek.Broker]:
    with odradek.Broker() as running:
        yield running


@pytest.fixture
def servers(broker: odradek.Broker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def start(kafka_cp: str, servers: str) -> Iterator[Start]:
    """A function that starts a sample with settings, for example ``start("everyHundred", stop_at=50)``."""
    started: list[KilledProgram] = []

    def run(sample: str, **settings: object) -> KilledProgram:
        given = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
        command = kafka_command(kafka_cp, java_classes(kafka_cp), heap="128m")
        started.append(KilledProgram([*command, "ArticleSamples", sample, servers, *given]))
        return started[-1]

    yield run
    for victim in started:
        victim.kill()


@pytest.mark.slow
@pytest.mark.claim(22)
def test_the_sample_of_auto_commit_commits_every_two_seconds(servers: str, start: Start) -> None:
    """The sample does not set ``auto.offset.reset``. So the test first commits offset 0 for the group, and the sample
    reads all records."""
    for topic in ("foo", "bar"):
        create_topic(servers, topic)
        commit(servers, GROUP, {(topic, 0): 0})
    before = len(commits_of(servers, GROUP))
    sample = start("autoCommit")

    def rows() -> list[tuple[str, int, int]]:
        return [(c.topic, c.offset, c.at_ms) for c in commits_of(servers, GROUP)[before:]]

    for number in range(3):
        for topic in ("foo", "bar"):
            publish(servers, topic, [f"{topic}-{number}"], key=f"k{number}")
        reached = (number + 1, number + 1)
        eventually(lambda reached=reached: tuple(offsets_now(servers)) == reached, within_s=60)
    sample.kill()
    seen = sorted(line.partition("key = ")[2] for line in sample.lines if line.startswith("offset = "))
    assert seen == sorted(f"k{n}, value = {topic}-{n}" for topic in ("foo", "bar") for n in range(3))
    times = sorted({at_ms for _, _, at_ms in rows()})
    ticks = [times[0], *(later for earlier, later in pairwise(times) if later - earlier > 500)]
    assert len(ticks) >= 3
    apart = [later - earlier for earlier, later in pairwise(ticks)]
    assert min(apart) >= 1_900, apart  # the sample's timer starts before the request arrives
    assert min(apart) < 3_500, apart


def offsets_now(servers: str) -> list[int]:
    found = committed(servers, GROUP)
    return [found.get((topic, 0), 0) for topic in ("foo", "bar")]


@pytest.mark.slow
@pytest.mark.claim(31, part="a")
def test_the_sample_of_synchronous_commits_retries_and_handles_its_removal(
    broker: odradek.Broker, servers: str, start: Start
) -> None:
    """``commitSync`` retries a transient error. ``CommitFailedException`` reaches the sample's ``handle``."""
    create_topic(servers, "foo")
    publish(servers, "foo", numbers(10))
    broker.faults.error("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=3, topic="foo")
    sample = start("commitSync", slow_at=11, slow_ms=3_000, max_poll_interval_ms=1_500)
    eventually(lambda: committed(servers, GROUP) == {("foo", 0): 10}, within_s=60)
    assert [fault.kind for fault in broker.faults.fired] == ["error"] * 3
    assert sample.starting("handled") == []
    publish(servers, "foo", ["slow"])
    eventually(lambda: sample.starting("handled") == [["CommitFailedException"]], within_s=60)
    # The consumer was removed from the group. It rejoins and gets the record again. Processing is quick now.
    eventually(lambda: committed(servers, GROUP) == {("foo", 0): 11}, within_s=60)
    assert [offset for _, _, offset in sample.processed][-2:] == [10, 10]


@pytest.mark.claim(36)
def test_the_sample_of_both_kinds_commits_its_position_although_the_last_asynchronous_commit_failed(
    broker: odradek.Broker, servers: str, start: Start
) -> None:
    create_topic(servers, "foo")
    publish(servers, "foo", numbers(20))
    sample = start("combined")
    eventually(lambda: committed(servers, GROUP) == {("foo", 0): 20}, within_s=60)
    broker.faults.error("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", times=None, topic="foo")
    publish(servers, "foo", numbers(10))
    eventually(lambda: len(sample.processed) == 30, within_s=60)
    eventually(lambda: broker.faults.fired, within_s=60)  # the commitAsync after these records
    sample.say("end")
    eventually(lambda: sample.starting("handled") == [["WakeupException"]])
    asked = len(broker.faults.fired)
    eventually(lambda: len(broker.faults.fired) >= asked + 2, what="commitSync tries it again")
    assert committed(servers, GROUP) == {("foo", 0): 20}
    broker.faults.clear()
    assert sample.wait() == 0
    assert committed(servers, GROUP) == {("foo", 0): 30}


@pytest.mark.slow
@pytest.mark.claim(40, part="b")
def test_the_sample_of_every_hundred_records_commits_at_1_and_101(servers: str, start: Start) -> None:
    """The sample checks its counter before the increment, so it does not commit the last 99 of 5,000 records. A crash
    while it processes the records of a poll repeats at most 100."""
    create_topic(servers, "foo")
    publish(servers, "foo", numbers(5_000))
    # A static member: the next run does not wait until the session of the first run has ended.
    sample = start("everyHundred", max_poll_records=5_000, fetch_min_bytes=60_000, group_instance_id="one")
    eventually(lambda: committed(servers, GROUP) == {("foo", 0): 4_901}, within_s=60)
    eventually(lambda: len(sample.processed) == 5_000)
    sample.kill()
    assert sample.starting("polled") == [["5000"]]
    assert [row.offset for row in commits_of(servers, GROUP)] == list(range(1, 5_000, 100))
    heir = start("everyHundred", stop_at=99, group_instance_id="one")
    eventually(lambda: len(heir.processed) == 99, within_s=60)
    assert heir.processed == [("foo", 0, offset) for offset in range(4_901, 5_000)]


@pytest.mark.slow
@pytest.mark.claim(40, part="a")
@pytest.mark.claim(35, part=True)
def test_a_map_of_all_partitions_limits_the_repeats_after_a_crash_to_100(servers: str, start: Start) -> None:
    """20 partitions of 150 records in one poll, killed at record 2,350. The map of ``everyHundred`` has the position of
    each partition that it has read; each commit writes a record for each of these partitions.
    ``everyHundredOfOnePartition`` commits only the current partition, so the ends of the earlier partitions stay
    uncommitted."""
    create_topic(servers, "foo", 20)
    for partition in range(20):
        publish(servers, "foo", numbers(150), partition=partition)
    runs = {
        sample: start(sample, group_id=sample, stop_at=2_350, max_poll_records=5_000)
        for sample in ("everyHundred", "everyHundredOfOnePartition")
    }
    for victim in runs.values():
        eventually(lambda victim=victim: len(victim.processed) == 2_350, within_s=60)
        victim.kill()
    assert sorted(runs["everyHundred"].starting("polled")) == [["3000"]]
    written = {sample: commits_of(servers, sample) for sample in runs}
    again = {
        sample: repeated(victim.processed, {(row.topic, row.partition): row.offset for row in written[sample]})
        for sample, victim in runs.items()
    }
    assert 0 < again["everyHundred"] <= 100
    assert again["everyHundredOfOnePartition"] > 500
    assert len(written["everyHundredOfOnePartition"]) == 24
    # The sample reads one partition after the other, 150 records each: commit n has all partitions that were started.
    assert len(written["everyHundred"]) == sum(1 + 100 * commit // 150 for commit in range(24))


@pytest.mark.slow
@pytest.mark.claim(24)
@pytest.mark.parametrize("sample", ["automatic", "automaticBesideAThread"])
def test_auto_commit_loses_records_of_a_thread_but_none_that_are_processed_before_the_next_poll(
    servers: str, start: Start, sample: str
) -> None:
    """The sample is killed while it processes record 30 of 100. Its polls return 10 records, and it commits every 100
    ms."""
    create_topic(servers, "foo")
    publish(servers, "foo", numbers(100))
    quick = {"enable_auto_commit": "true", "auto_commit_interval_ms": 100, "max_poll_records": 10}
    victim = start(sample, stop_at=30, **quick)
    eventually(lambda: len(victim.processed) >= 30, within_s=60)
    if sample == "automaticBesideAThread":
        eventually(lambda: committed(servers, GROUP) == {("foo", 0): 100}, within_s=30)
    victim.kill()
    done = {offset for _, _, offset in victim.processed}
    place = committed(servers, GROUP).get(("foo", 0), 0)
    lost = set(range(place)) - (done - {29})  # the record that is processed at the kill is not done
    assert bool(lost) == (sample == "automaticBesideAThread")
    if not lost:
        assert 0 < place <= 20  # the poll that is processed at the kill is not committed


@pytest.mark.slow
@pytest.mark.claim(25, 27)
def test_a_process_killed_at_8_seconds_repeats_the_records_after_its_last_commit(servers: str, start: Start) -> None:
    """Two runs at the same time, with commit intervals of 5 s and of 1 s. Processing a record takes 10 ms, and a
    poll returns one record."""
    create_topic(servers, "foo")
    publish(servers, "foo", numbers(2_000))
    runs = {
        interval: start(
            "automatic", group_id=f"g{interval}", group_instance_id="one", enable_auto_commit="true",
            auto_commit_interval_ms=interval, max_poll_records=1,
        )
        for interval in (5_000, 1_000)
    }  # fmt: skip

    last = kill_at_8_seconds(servers, {interval: (f"g{interval}", victim) for interval, victim in runs.items()})
    for interval, offset in last.items():
        heir = start("automatic", group_id=f"g{interval}", group_instance_id="one", stop_at=1)
        assert eventually(lambda heir=heir: heir.processed, within_s=60)[0] == ("foo", 0, offset)
        heir.kill()
    assert len(runs[1_000].processed) - last[1_000] < len(runs[5_000].processed) - last[5_000]


@pytest.mark.slow
@pytest.mark.claim(100, part="ab")
def test_the_console_consumer_prints_the_offsets_topic_with_the_formatter_of_its_version(
    servers: str, kafka_cp: str
) -> None:
    """The article's formatter class does not exist in Kafka 4.3. The class that replaces it prints JSON."""
    create_topic(servers, "foo")
    commit(servers, GROUP, {("foo", 0): 7})

    def dump(formatter: str) -> subprocess.CompletedProcess[str]:
        command = [*kafka_command(kafka_cp, heap="128m"), "org.apache.kafka.tools.consumer.ConsoleConsumer"]
        command += ["--topic", "__consumer_offsets", "--bootstrap-server", servers, "--from-beginning"]
        command += ["--formatter", formatter, "--max-messages", "1", "--timeout-ms", "20000"]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    old = dump("kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter")
    assert old.returncode != 0
    assert old.stderr.startswith("kafka.coordinator.group.GroupMetadataManager$OffsetsMessageFormatter\nOption")
    assert old.stdout == ""
    new = dump("org.apache.kafka.tools.consumer.OffsetsMessageFormatter")
    entry = json.loads(new.stdout)
    assert entry["key"] == {"type": 1, "data": {"group": GROUP, "topic": "foo", "partition": 0}}
    assert (entry["value"]["version"], entry["value"]["data"]["offset"]) == (4, 7)
