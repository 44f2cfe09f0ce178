"""``transactional_writer``: each micro-batch is one transaction; after any crash its rows are in the topic once."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from spark_runs import StreamingRun
from support.brokers import eventually, unique
from support.driver_producers import offsets_sent_after, producer_calls
from support.publish import create_topic, numbers, publish
from support.spark_cluster import standalone
from support.transactions import set_version

from odradek import Consumer, Producer
from odradek.client.admin import Admin
from odradek.client.producer.errors import ProducerFenced
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition
from odradek.spark import transactional_writer
from odradek.spark.driver.micro_batch_number import MicroBatchRefused
from odradek.spark.driver.micro_batch_transactions import _outputs
from odradek.spark.errors import reason


class DriverEnd(Exception):
    """Stands for the end of the driver."""


@pytest.fixture
def target(bootstrap: str) -> str:
    name = unique("spark-transactions")
    create_topic(bootstrap, name, 3)
    return name


READ_S = 120


def values(bootstrap: str, topic: str) -> list[str]:
    """The values of all committed records. The read waits for the end of open transactions."""
    with Admin(bootstrap) as admin:
        places = admin.partitions(topic)
        ends = {tp: end.offset for tp, end in admin.list_offsets(dict.fromkeys(places, -1)).items()}
    found: list[str] = []
    with Consumer(bootstrap, auto_offset_reset="earliest", isolation_level="read_committed") as reader:
        reader.assign(places)
        deadline = time.monotonic() + READ_S
        while any(reader.position(tp) < end for tp, end in ends.items()):
            assert time.monotonic() < deadline, f"{len(found)} records within {READ_S} s, log ends {ends}"
            for rows in (one for batches in reader.poll(30).values() for one in batches):
                found += [value.decode() for value in rows.column("value").to_pylist()]
    return sorted(found)


def run(stream: StreamingRun, write: Callable[[Any, int], None], commit_offsets: str = "transaction") -> None:
    options = {"maxOffsetsPerTrigger": "40", "startingOffsets": "earliest", "commitOffsets": commit_offsets}
    frame = stream.frame(**options).select("key", "value")
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(stream.checkpoint))
    assert query.trigger(availableNow=True).start().awaitTermination(240)


def failed(stream: StreamingRun, write: Callable[[Any, int], None], commit_offsets: str = "transaction") -> str:
    with pytest.raises(Exception, match=r"odradek|DriverEnd") as caught:
        run(stream, write, commit_offsets)
    return reason(caught.value) or str(caught.value)


def query_id(stream: StreamingRun) -> str:
    return str(json.loads((stream.checkpoint / "metadata").read_text())["id"])


def check_group(stream: StreamingRun) -> None:
    """The source's group has the offsets of the checkpoint's last micro-batch."""
    end = stream.source_offset(stream.log("commits")[-1])
    assert stream.committed() == {int(number): offset for number, offset in end[stream.topic].items()}


@pytest.fixture
def filled(bootstrap: str, stream: StreamingRun) -> list[str]:
    create_topic(bootstrap, stream.topic, 2)
    publish(bootstrap, stream.topic, numbers(100))
    return sorted(str(number) for number in range(100))


def test_rows_are_in_the_topic_once_after_the_driver_ended_before_and_after_the_commit(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str]
) -> None:
    end_at("commit_transaction", bootstrap, stream, target)
    end_after_the_commit(bootstrap, stream, target)
    run(stream, transactional_writer(bootstrap, target))
    assert values(bootstrap, target) == filled
    batch = stream.log("commits")[-1]
    place = TopicPartition(target, 0)
    assert stream.admin.list_group_offsets(f"odradek-{query_id(stream)}")[place].offset == batch
    check_group(stream)


@pytest.mark.slow
def test_rows_are_written_without_pandas(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``make test-pyspark`` has environments without pandas."""

    def refuses() -> None:
        raise ModuleNotFoundError("No module named 'pandas'")

    monkeypatch.setattr("pyspark.sql.pandas.functions.require_minimum_pandas_version", refuses)
    run(stream, transactional_writer(bootstrap, target))
    assert values(bootstrap, target) == filled


def test_a_function_with_a_writer_for_each_of_two_topics_writes_both_once(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str]
) -> None:
    """Each topic has its own transactions. The driver ends between the two transactions of the first micro-batch.

    Earlier releases used one transactional id for all topics. The next start of the query ends an
    open transaction of that id."""
    other = f"{target}-too"
    create_topic(bootstrap, other, 2)
    first, second = (transactional_writer(bootstrap, topic) for topic in (target, other))

    def ends_between(frame: Any, batch: int) -> None:
        first(frame, batch)
        raise DriverEnd

    def both(frame: Any, batch: int) -> None:
        first(frame, batch)
        second(frame.selectExpr("key", "concat('too ', CAST(value AS string)) AS value"), batch)

    assert "DriverEnd" in failed(stream, ends_between, "true")
    with Producer(bootstrap, transactional_id=f"odradek-{query_id(stream)}") as earlier:
        earlier.init_transactions()
        earlier.begin_transaction()
        earlier.send(target, b"of an earlier driver")
        earlier.flush()
        run(stream, both, "true")
        with pytest.raises(ProducerFenced):
            earlier.commit_transaction()
    assert len(stream.log("commits")) == 3
    stream.forget_that_the_last_batch_was_done()
    run(stream, both, "true")
    assert values(bootstrap, target) == filled
    assert values(bootstrap, other) == sorted(f"too {value}" for value in filled)
    numbers_of = stream.admin.list_group_offsets(f"odradek-{query_id(stream)}")
    assert {tp: commit.offset for tp, commit in numbers_of.items()} == {
        TopicPartition(target, 0): 2,
        TopicPartition(other, 0): 2,
    }


def test_a_second_write_in_a_micro_batch_that_would_lose_rows_or_show_offsets_too_early_is_refused(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str]
) -> None:
    """A second call for a topic would find the number that the first call has stored, and send nothing. With two
    topics, the source's offsets would be visible before the rows of the second topic."""
    once = transactional_writer(bootstrap, target)

    def twice(frame: Any, batch: int) -> None:
        once(frame.where("value < '3'"), batch)
        once(frame.where("value >= '3'"), batch)

    def two(frame: Any, batch: int) -> None:
        once(frame.where("value < '3'"), batch)
        transactional_writer(bootstrap, target)(frame.where("value >= '3'"), batch)

    for wrong in (twice, two):
        assert "make one DataFrame of all rows for the topic, with union" in failed(stream, wrong)
    other = f"{target}-too"
    create_topic(bootstrap, other, 2)
    too = transactional_writer(bootstrap, other)

    def both(frame: Any, batch: int) -> None:
        once(frame, batch)
        too(frame, batch)

    message = failed(stream, both)
    assert f"(group {stream.group}) can be in one transaction only" in message
    assert "set commitOffsets=true on the source" in message
    assert values(bootstrap, other) == []


@pytest.mark.slow
def test_rows_of_another_source_are_in_the_topic_once(
    spark: Any, bootstrap: str, stream: StreamingRun, target: str, tmp_path: Path
) -> None:
    """The source is a folder of files. The query's own group keeps the number of the last micro-batch."""
    (tmp_path / "lines").mkdir()
    for number in range(3):
        (tmp_path / "lines" / f"{number}.txt").write_text(f"{number}a\n{number}b\n")

    def start(write: Callable[[Any, int], None]) -> Any:
        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(tmp_path / "lines"))
        query = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(stream.checkpoint))
        return query.trigger(availableNow=True).start()

    write = transactional_writer(bootstrap, target)

    def end_after(frame: Any, batch: int) -> None:
        write(frame, batch)
        if batch == 1:
            raise DriverEnd

    with pytest.raises(Exception, match="DriverEnd"):
        start(end_after).awaitTermination(240)
    assert start(transactional_writer(bootstrap, target)).awaitTermination(240)
    assert values(bootstrap, target) == ["0a", "0b", "1a", "1b", "2a", "2b"]
    place = TopicPartition(target, 0)
    assert stream.admin.list_group_offsets(f"odradek-{query_id(stream)}")[place].offset == 2


@pytest.mark.slow
def test_a_new_writer_for_each_micro_batch_writes_each_row_once(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str]
) -> None:
    """Each writer fences the previous writer. Both belong to the same driver, so this is no error."""
    made = [transactional_writer(bootstrap, target) for _ in range(2)]
    run(stream, lambda frame, batch: made[batch % 2](frame, batch))
    assert len(stream.log("commits")) == 3
    assert values(bootstrap, target) == filled


@pytest.mark.parametrize("first_batch", [pytest.param(1, marks=pytest.mark.slow), 100])
def test_a_first_batch_option_of_another_checkpoint_skips_no_row(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str], first_batch: int
) -> None:
    """The program still sets the option when the query starts with a new checkpoint."""
    message = failed(stream, transactional_writer(bootstrap, target, first_batch=first_batch))
    assert "remove first_batch (--first-batch)" in message
    assert values(bootstrap, target) == []
    run(stream, transactional_writer(bootstrap, target))
    assert values(bootstrap, target) == filled


def test_a_driver_whose_transactional_id_is_fenced_names_both_causes(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str]
) -> None:
    write = transactional_writer(bootstrap, target)

    def fenced_later(frame: Any, batch: int) -> None:
        if batch == 1:
            stream.admin.fence_producers([f"odradek-{query_id(stream)}-{target}"])
        write(frame, batch)

    message = failed(stream, fenced_later)
    assert "another driver runs the query" in message
    assert "an administrator has fenced its transactional id" in message
    run(stream, transactional_writer(bootstrap, target))
    assert values(bootstrap, target) == filled
    assert list(_outputs._runs) == [query_id(stream)], "ended queries are forgotten"


@pytest.mark.slow
def test_a_first_micro_batch_whose_number_may_have_expired_is_refused(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str]
) -> None:
    """The first micro-batch was committed, and the driver ended. The next start comes after
    ``offsets.retention.minutes``. The test deletes the group and fences the
    transactional id. Like the expiry of both, this hides the outcome of the last transaction."""
    end_after_the_commit(bootstrap, stream, target)
    written = values(bootstrap, target)
    assert len(written) == 40
    stream.admin.delete_groups([f"odradek-{query_id(stream)}"])
    stream.admin.fence_producers([f"odradek-{query_id(stream)}-{target}"])
    planned = stream.checkpoint / "offsets" / "0"
    version, metadata, *ends = planned.read_text().splitlines()
    days_ago = json.loads(metadata)
    days_ago["batchTimestampMs"] -= 8 * 86_400_000
    planned.write_text("\n".join([version, json.dumps(days_ago), *ends]))
    planned.with_name(".0.crc").unlink()
    message = failed(stream, transactional_writer(bootstrap, target))
    assert "micro-batch 0 was planned 192.0 hours ago" in message
    assert "pass first_batch=0, else first_batch=1" in message
    assert values(bootstrap, target) == written
    run(stream, transactional_writer(bootstrap, target, first_batch=1))
    assert values(bootstrap, target) == filled


@pytest.mark.slow
def test_a_first_micro_batch_whose_number_was_deleted_is_refused(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str]
) -> None:
    """Somebody deletes the query's own group after the transaction, before Spark notes the micro-batch as finished."""
    end_after_the_commit(bootstrap, stream, target)
    written = values(bootstrap, target)
    assert len(written) == 40
    stream.admin.delete_groups([f"odradek-{query_id(stream)}"])
    for _ in range(2):  # a refused start changes nothing
        message = failed(stream, transactional_writer(bootstrap, target))
        assert f"transactional id odradek-{query_id(stream)}-{target} has committed a transaction" in message
        assert "pass first_batch=0, else first_batch=1" in message
        assert values(bootstrap, target) == written
    run(stream, transactional_writer(bootstrap, target, first_batch=1))
    assert values(bootstrap, target) == filled
    check_group(stream)


@pytest.mark.parametrize("commit_offsets", ["transaction", pytest.param("false", marks=pytest.mark.slow)])
def test_a_checkpoint_that_has_lost_its_last_micro_batches_is_refused(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str], commit_offsets: str
) -> None:
    """The checkpoint is restored from a copy. The topic has one or two micro-batches more than the copy. Spark plans
    the next micro-batch again, now with later records. A writer that skipped it as repeated would lose them."""
    run(stream, transactional_writer(bootstrap, target), commit_offsets)
    publish(bootstrap, stream.topic, [b"100"])
    for _ in range(2):
        forget_plan(stream, stream.forget_that_the_last_batch_was_done())
        message = failed(stream, transactional_writer(bootstrap, target), commit_offsets)
        assert "the checkpoint is older than its output" in message
        assert "Restore the checkpoint, or use a new one that starts after the records in the topic" in message
        assert values(bootstrap, target) == filled
        forget_plan(stream, stream.log("offsets")[-1])


def forget_plan(stream: StreamingRun, batch: int) -> None:
    """Removes the plan of a micro-batch from the checkpoint."""
    for name in (str(batch), f".{batch}.crc"):
        (stream.checkpoint / "offsets" / name).unlink(missing_ok=True)


@pytest.mark.slow
def test_the_deletion_of_the_source_s_group_repeats_and_skips_no_row(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str]
) -> None:
    """The group is deleted after the transaction of the first micro-batch and of the last, before Spark notes the
    micro-batch as finished. The checkpoint decides, and the next micro-batch commits to the group."""
    end_after_the_commit(bootstrap, stream, target)
    stream.admin.delete_groups([stream.group])
    run(stream, transactional_writer(bootstrap, target))
    assert values(bootstrap, target) == filled
    check_group(stream)
    stream.forget_that_the_last_batch_was_done()
    stream.admin.delete_groups([stream.group])
    publish(bootstrap, stream.topic, [b"100", b"101", b"102"])
    run(stream, transactional_writer(bootstrap, target))
    assert values(bootstrap, target) == sorted([*filled, "100", "101", "102"])
    check_group(stream)


@pytest.fixture(params=[0, 1, 2])
def level(bootstrap: str, request: pytest.FixtureRequest) -> Iterator[int]:
    """Sets the cluster's transaction.version for a test, and 2 after it."""
    set_version(bootstrap, request.param)
    yield request.param
    set_version(bootstrap, 2)


@pytest.mark.slow
def test_a_driver_that_ends_anywhere_leaves_each_row_once(
    bootstrap: str,
    level: int,
    stream: StreamingRun,
    target: str,
    filled: list[str],
) -> None:
    for moment in ("share_transaction", "send_offsets_to_transaction", "commit_transaction"):
        end_at(moment, bootstrap, stream, target)
        end_after_the_commit(bootstrap, stream, target)
    run(stream, transactional_writer(bootstrap, target))
    assert values(bootstrap, target) == filled
    stream.forget_that_the_last_batch_was_done()
    run(stream, transactional_writer(bootstrap, target))
    assert values(bootstrap, target) == filled, "a repeated micro-batch sends nothing"
    check_group(stream)


@pytest.mark.slow
def test_the_error_of_a_micro_batch_that_exceeds_its_timeout_names_the_timeout(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str]
) -> None:

    def wait_for_the_timeout(group: Any) -> None:
        name = f"odradek-{query_id(stream)}-{target}"
        eventually(
            lambda: stream.admin.describe_transactions([name])[name].state == "CompleteAbort",
            within_s=120,
            what="the end of the transaction by its timeout",
        )

    short = transactional_writer(bootstrap, target, **{"kafka.transaction.timeout.ms": "1000"})
    with producer_calls(send_offsets_to_transaction=offsets_sent_after(wait_for_the_timeout)):
        assert "took longer than kafka.transaction.timeout.ms=1000" in failed(stream, short)
    run(stream, transactional_writer(bootstrap, target))
    assert values(bootstrap, target) == filled


@pytest.mark.slow
def test_of_two_drivers_the_later_one_continues_and_the_earlier_one_reports_its_fencing(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str]
) -> None:

    def fence(group: Any) -> None:
        with Producer(bootstrap, transactional_id=f"odradek-{query_id(stream)}-{target}") as other:
            other.init_transactions()

    with producer_calls(send_offsets_to_transaction=offsets_sent_after(fence)):
        assert "another driver runs the query" in failed(stream, transactional_writer(bootstrap, target))
    run(stream, transactional_writer(bootstrap, target))
    assert values(bootstrap, target) == filled


@pytest.mark.slow
def test_an_attempt_with_a_repeated_task_or_stage_is_aborted_and_made_again(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str], tmp_path: Path
) -> None:
    """The query runs in a process of its own: the session of the tests allows one failure, so Spark repeats no task
    there."""
    disturbed(bootstrap, stream.topic, target, tmp_path, "local[1,3]", "task", "stage")
    for mode in ("task", "stage"):
        assert values(bootstrap, f"{target}-{mode}") == filled


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds the executor of a task through /proc")
@pytest.mark.parametrize("mode", ["executor", "speculation"])
def test_an_attempt_with_a_killed_executor_or_a_speculative_copy_is_aborted_and_made_again(
    bootstrap: str, stream: StreamingRun, target: str, filled: list[str], tmp_path: Path, mode: str
) -> None:
    """The query runs on a cluster: in local mode the executor is the driver, and Spark makes no copies."""
    with standalone(tmp_path / "cluster", [True, True], hosts=["127.0.0.1", "127.0.0.2"]) as cluster:
        disturbed(bootstrap, stream.topic, target, tmp_path, cluster.address, mode)
    assert values(bootstrap, f"{target}-{mode}") == filled


def disturbed(bootstrap: str, topic: str, target: str, place: Path, master: str, *modes: str) -> None:
    """Runs a query for each mode, with one disturbance each, in a process of its own."""
    for mode in modes:
        create_topic(bootstrap, f"{target}-{mode}", 3)
    here = Path(__file__).with_name("transaction_child.py")
    command = [sys.executable, str(here), bootstrap, topic, target, str(place), master, *modes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("attempt 1: a task or stage was repeated") == len(modes), done.stderr[-3000:]
    assert all((place / mode).exists() for mode in modes), "nothing has failed"


def test_options_that_could_lose_or_duplicate_a_micro_batch_are_refused(bootstrap: str, target: str) -> None:
    query = unique("query")
    late = transactional_writer(bootstrap, target, **{"kafka.transaction.timeout.ms": "900001"})
    without_sources = SimpleNamespace(analyzedPlan=lambda: SimpleNamespace(collectLeaves=lambda: no_leaves))
    no_leaves = SimpleNamespace(size=lambda: 0)
    with pytest.raises(MicroBatchRefused, match=r"above the broker's transaction\.max\.timeout\.ms: pass a smaller"):
        late._start_run(query, "", without_sources, 0)
    with Consumer(bootstrap, group_id=f"odradek-{query}") as member:
        member.subscribe([target])
        member.poll(5)
        with pytest.raises(MicroBatchRefused, match="has live members"):
            transactional_writer(bootstrap, target)._start_run(query, "", without_sources, 0)
    with pytest.raises(ConfigError, match="does not support Spark Connect"):
        pickle.dumps(transactional_writer(bootstrap, target))
    with pytest.raises(ConfigError, match=r"an id of its own for each topic, odradek-<query id>-<topic>"):
        transactional_writer(bootstrap, target, **{"kafka.transactional.id": "mine"})
    with pytest.raises(ConfigError, match="needs acks=all"):
        transactional_writer(bootstrap, target, **{"kafka.acks": "1"})


def _killed(*_: Any, **__: Any) -> None:
    raise DriverEnd


def end_at(moment: str, bootstrap: str, stream: StreamingRun, target: str) -> None:
    """Ends the driver before a call of its producer; the transaction stays open."""
    ends = {moment: _killed, "abort_transaction": _killed, "close": lambda producer, timeout=None: None}
    with producer_calls(**ends):
        assert "DriverEnd" in failed(stream, transactional_writer(bootstrap, target))


def end_after_the_commit(bootstrap: str, stream: StreamingRun, target: str) -> None:
    """Ends the driver after EndTxn, before Spark notes the micro-batch as finished."""
    write = transactional_writer(bootstrap, target)

    def end_after(frame: Any, batch: int) -> None:
        write(frame, batch)
        raise DriverEnd

    assert "DriverEnd" in failed(stream, end_after)
