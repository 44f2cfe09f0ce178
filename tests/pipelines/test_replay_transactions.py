"""A replay into a topic with ``--exactly-once`` continues where its last committed transaction ended."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ingest_runs import ends
from support.brokers import RunningBroker, unique
from support.driver_producers import offsets_sent_after, producer_calls
from support.publish import create_topic, numbers, publish
from transaction_runs import a_driver, a_worker, committed_records, run_command, the_broker

from odradek import Consumer, Producer
from odradek.cli.main import run
from odradek.client.admin import Admin
from odradek.client.errors import UnknownTopic
from odradek.core.errors import ConfigError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.pipelines import Replayed, replay
from odradek.pipelines.options import ReplayOptions
from odradek.pipelines.replays import transactions
from odradek.pipelines.replays.input import Replay
from odradek.pipelines.replays.job import destination as into
from odradek.pipelines.replays.job import find_ranges, replay_of, run_replay
from odradek.pipelines.replays.progress import ReplayRefused
from odradek.pipelines.replays.selection import RangeGone
from odradek.pipelines.replays.transactions import ReplayFenced, _start_run
from odradek.spark.driver.micro_batch_number import MicroBatchRefused

SMALL = "250"
"""A batch size for about half of the records of a test."""


class DriverEnd(Exception):
    """Raised in place of the end of the driver."""


def no_spark() -> Any:
    raise AssertionError("Spark was started")


@pytest.fixture
def source(bootstrap: str) -> str:
    name = unique("replay-once")
    create_topic(bootstrap, name, 2, retention_ms="-1")
    publish(bootstrap, name, numbers(20), partition=0, key="a")
    publish(bootstrap, name, numbers(6), partition=1, key="b")
    return name


@pytest.fixture
def target(bootstrap: str) -> str:
    name = unique("replayed")
    create_topic(bootstrap, name, 3)
    return name


def origins(bootstrap: str, topic: str) -> list[str]:
    """The sources of the committed records (partition and offset), in the order of each partition."""
    return [dict(record.headers)["odradek-replayed-from"].decode() for record in committed_records(bootstrap, topic)]


def job(bootstrap: str, target: str, **given: Any) -> Replay:
    options = ReplayOptions(bootstrap_servers=bootstrap, to_topic=target, exactly_once=True, **given)
    chosen = into(options)
    found = find_ranges(options, chosen)
    assert chosen is not None
    return replay_of(options, found, chosen)


def test_a_run_continues_where_the_last_committed_transaction_ended(
    spark: Any, bootstrap: str, source: str, target: str, capsys: Any
) -> None:
    """The driver of the first run ends in its second transaction, before it adds the offsets to the transaction. The
    topic grows before the second run."""
    send_offsets, calls = Producer.send_offsets_to_transaction, []

    def ends_in_the_second(producer: Producer, offsets: Any, group: Any) -> None:
        calls.append(group)
        if len(calls) == 2:
            raise DriverEnd
        send_offsets(producer, offsets, group)

    given: dict[str, Any] = {"topics": source, "to_topic": target, "exactly_once": True, "batch_size": SMALL}
    with (
        producer_calls(
            send_offsets_to_transaction=ends_in_the_second,
            abort_transaction=lambda producer: None,
            close=lambda producer, timeout=None: None,
        ),
        pytest.raises(DriverEnd),
    ):
        replay(bootstrap, spark=spark, **given)
    publish(bootstrap, source, [b"late"], partition=1, key="b")
    done = replay(bootstrap, spark=spark, **given)
    assert isinstance(done, Replayed)
    assert done.earlier is not None
    assert done.transactions is not None
    assert 0 < done.earlier < 26, "the first transaction was kept"
    assert done.rows == done.offsets - done.earlier == 27 - done.earlier
    found = origins(bootstrap, target)
    assert sorted(found) == sorted([f"{source}-0@{n}" for n in range(20)] + [f"{source}-1@{n}" for n in range(7)])
    for partition in (0, 1):
        mine = [int(one.rpartition("@")[2]) for one in found if one.startswith(f"{source}-{partition}@")]
        assert mine == sorted(mine), "records of one partition with one key keep their order"
    third = run_replay(job(bootstrap, target, topics=source), no_spark)
    assert (third.rows, third.already, third.earlier) == (0, True, 27)
    line = ["pipeline", "replay", "-b", bootstrap, "--topics", source, "--to-topic", target, "--exactly-once"]
    assert run([*line]) == 0
    assert f"Nothing was added: {target} already has this replay's records (--again" in capsys.readouterr().out


def test_replays_that_could_lose_or_duplicate_a_record_are_refused(
    bootstrap: str, admin: Admin, source: str, target: str
) -> None:
    """The replays are refused before Spark starts."""
    with pytest.raises(UnknownTopic, match="nowhere"):
        run_replay(job(bootstrap, "nowhere", topics=source), no_spark)
    for name in ("transaction.timeout.ms", "kafka.transaction.timeout.ms"):
        late = job(bootstrap, target, topics=source, producer_options={name: "900001"})
        with pytest.raises(ConfigError, match=r"timeout.ms=900001 is above the broker's transaction.max.timeout.ms"):
            run_replay(late, no_spark)
    with pytest.raises(ConfigError, match="needs acks=all"):
        job(bootstrap, target, topics=source, producer_options={"enable.idempotence": "false", "acks": "1"})
    with pytest.raises(ConfigError, match="exactly_once is for to_topic: a table has each record of a replay once"):
        into(ReplayOptions(bootstrap_servers=bootstrap, topics=source, output="t", exactly_once=True))
    with pytest.raises(ConfigError, match="batch_size is for exactly_once"):
        into(ReplayOptions(bootstrap_servers=bootstrap, topics=source, to_topic=target, batch_size="1k"))
    mine = job(bootstrap, target, topics=source)
    with _start_run(mine, mine.into) as one:
        name = one.name
    with Consumer(bootstrap, group_id=name) as member:
        member.subscribe([source])
        member.poll(5)
        with pytest.raises(MicroBatchRefused, match=rf"group {name} .* live members .*: stop them"):
            run_replay(mine, no_spark)
    admin.alter_group_offsets(name, {TopicPartition(source, 0): OffsetAndMetadata(7)})
    with pytest.raises(ReplayRefused, match=f"group {name} .* another client has committed offset 7 of {source}-0"):
        run_replay(mine, no_spark)


@pytest.mark.slow
def test_a_replay_whose_progress_has_expired_is_refused_if_the_target_has_its_records(
    spark: Any, bootstrap: str, admin: Admin, source: str, target: str
) -> None:
    """The records of another replay, and of other producers, do not count."""
    other = job(bootstrap, target, offsets=f'{{"{source}":{{"1":[0,2]}}}}')
    assert run_replay(other, lambda: spark).rows == 2
    assert run_replay(job(bootstrap, target, topics=source), lambda: spark).rows == 26
    publish(bootstrap, target, numbers(5), partition=0)
    mine = job(bootstrap, target, topics=source)
    with _start_run(mine, mine.into) as one:
        name = one.name
    admin.delete_groups([name])
    with pytest.raises(ReplayRefused, match=rf"group {name}, .* has expired .* {target}-\d at offset \d+: .*'again'"):
        run_replay(mine, no_spark)
    again = job(bootstrap, target, topics=source, again=True)
    assert run_replay(again, lambda: spark).rows == 26
    assert run_replay(mine, no_spark).already, "the progress is there again"


def test_the_deletion_of_records_that_an_earlier_run_has_planned_is_an_error(
    spark: Any, bootstrap: str, admin: Admin, source: str, target: str
) -> None:
    mine = job(bootstrap, target, topics=source)
    with _start_run(mine, mine.into) as one:
        name = one.name
    topic_id = admin.describe_topics([source])[source].topic_id
    assert topic_id is not None
    planned = OffsetAndMetadata(2, metadata=f"odradek-replay:1:{topic_id.hex}:0-20:0-2")
    admin.alter_group_offsets(name, {TopicPartition(source, 0): planned})
    admin.delete_records({TopicPartition(source, 0): 5})
    with pytest.raises(RangeGone, match=f"{source}-0: offsets 2 to 4 are lost"):
        run_replay(job(bootstrap, target, topics=source), no_spark)
    done = run_replay(job(bootstrap, target, topics=source, allow_missing=True), lambda: spark)
    assert [line.partition(" are lost")[0] for line in done.missing] == [f"{source}-0: offsets 2 to 4"]


def test_records_of_open_transactions_are_not_replayed(bootstrap: str, source: str, target: str) -> None:
    """The range ends before an open transaction, unless the isolation level is read_uncommitted."""
    with Producer(bootstrap, transactional_id=unique("open")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(source, b"open", partition=1)
        producer.flush()
        assert job(bootstrap, target, topics=source).found.offsets == 26
        chosen = {"kafka.isolation.level": "read_uncommitted"}
        assert job(bootstrap, target, topics=source, options=chosen).found.offsets == 27
        with pytest.raises(RangeGone, match=rf"{source}-1: offset 6 does not exist \(its committed records end at 6\)"):
            job(bootstrap, target, offsets=f'{{"{source}":{{"1":[0,7]}}}}')
        producer.abort_transaction()


@pytest.mark.slow
def test_of_two_runs_the_later_one_continues_and_the_earlier_one_reports_its_fencing(
    spark: Any, bootstrap: str, source: str, target: str
) -> None:
    def fence(group: Any) -> None:
        with Producer(bootstrap, transactional_id=group.group_id) as other:
            other.init_transactions()

    with producer_calls(send_offsets_to_transaction=offsets_sent_after(fence)):
        causes = r"another run of this replay .* fenced its transactional id odradek-replay-.*force-terminate"
        with pytest.raises(ReplayFenced, match=causes):
            run_replay(job(bootstrap, target, topics=source), lambda: spark)
    assert run_replay(job(bootstrap, target, topics=source), lambda: spark).rows == 26
    again = job(bootstrap, target, topics=source, again=True)
    assert run_replay(again, lambda: spark).rows == 26
    assert len(origins(bootstrap, target)) == 52


@pytest.mark.parametrize("step", ["_check_unsent", "_check_target"])
def test_a_run_that_was_paused_at_its_checks_names_the_other_run(
    step: str, spark: Any, bootstrap: str, source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run has sent all records since the progress was read. Before, the line said that the progress had
    expired, or that the brokers' data was put back."""
    if step == "_check_target":
        assert run_replay(job(bootstrap, target, topics=source), lambda: spark).rows == 26
        publish(bootstrap, source, numbers(4), partition=1)
    check, others = getattr(transactions, step), []

    def late(*given: Any) -> None:
        if not others:
            others.append(None)
            others.append(run_replay(job(bootstrap, target, topics=source), lambda: spark).rows)
        check(*given)

    monkeypatch.setattr(transactions, step, late)
    with pytest.raises(ReplayFenced, match="another run of this replay has sent records since this one began") as said:
        run_replay(job(bootstrap, target, topics=source), lambda: spark)
    assert "\n" not in str(said.value)
    assert others == [None, 26 if step == "_check_unsent" else 4]
    assert len(origins(bootstrap, target)) == 26 if step == "_check_unsent" else 30
    assert run_replay(job(bootstrap, target, topics=source), no_spark).already


@pytest.mark.slow
def test_a_run_that_another_one_has_taken_over_does_not_name_the_timeout(
    spark: Any, bootstrap: str, source: str, target: str
) -> None:
    """It was paused for longer than the timeout of its transaction, before the other one began."""
    given: dict[str, Any] = {"topics": source, "producer_options": {"transaction.timeout.ms": "1000"}}
    others: list[int] = []

    def pause(group: Any) -> None:
        if not others:
            time.sleep(1.5)
            others.append(0)
            others.append(run_replay(job(bootstrap, target, topics=source), lambda: spark).rows)

    with (
        producer_calls(send_offsets_to_transaction=offsets_sent_after(pause)),
        pytest.raises(ReplayFenced, match="another run of this replay has taken it over"),
    ):
        run_replay(job(bootstrap, target, **given), lambda: spark)
    assert others == [0, 26]
    publish(bootstrap, source, numbers(2), partition=1)
    with (
        producer_calls(send_offsets_to_transaction=offsets_sent_after(lambda group: time.sleep(8))),
        pytest.raises(ReplayRefused, match=r"took longer than transaction\.timeout\.ms=1000"),
    ):
        run_replay(job(bootstrap, target, **given), lambda: spark)


RECORDS_PER_KILL = 4_000
BATCH = "20k"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds a process's children through /proc")
@pytest.mark.parametrize("seed", range(3))
def test_a_killed_replay_has_each_record_once(
    seed: int, own_broker: Callable[..., RunningBroker], tmp_path: Path
) -> None:
    """A driver (twice), a worker and a broker are killed, each at a random moment of another run of the same command.
    The topic grows before each run."""
    chance, broker = random.Random(seed), own_broker()
    create_topic(broker.bootstrap, "events", 4, retention_ms="-1")
    create_topic(broker.bootstrap, "copies", 3)
    line = ["pipeline", "replay", "-b", broker.bootstrap, "--topics", "events", "--to-topic", "copies"]
    line += ["--exactly-once", "--batch-size", BATCH, "--master", "local[2,2]"]
    victims = chance.sample([a_driver, a_driver, a_worker, the_broker], 4)
    with Admin(broker.bootstrap) as admin:
        for victim in victims:
            for partition in range(4):
                publish(broker.bootstrap, "events", numbers(RECORDS_PER_KILL // 4), partition=partition)
            at = sum(ends(admin, "copies").values()) + chance.randrange(1, RECORDS_PER_KILL // 2)

            def disturb(pid: int, at: int = at, victim: Any = victim) -> str | None:
                return victim(broker, chance, pid) if sum(ends(admin, "copies").values()) >= at else None

            found = run_command(line, tmp_path / "log.txt", disturb)
            print(f"seed {seed}: {found.killed} at offset {at}, then code {found.code}", flush=True)
            assert found.killed, found
            assert found.code in (0, 1, -signal.SIGKILL), found
    last = run_command(line, tmp_path / "log.txt")
    assert last.code == 0, last
    assert sorted(origins(broker.bootstrap, "copies")) == sorted(
        f"events-{partition}@{offset}" for partition in range(4) for offset in range(RECORDS_PER_KILL)
    )
    third = run_command(line, tmp_path / "log.txt")
    assert (third.code, "Nothing was added" in third.output) == (0, True), third
