"""Several writers in one function: which calls are refused, and which earlier transactional id is ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from odradek.core.errors import ErrorCode, KafkaError
from odradek.spark.driver.micro_batch_number import MicroBatchRefused
from odradek.spark.driver.micro_batch_outputs import MicroBatchOutputs, Output
from odradek.spark.driver.micro_batch_transactions import _end_earlier

FIRST, SECOND = Output("cluster", "first"), Output("cluster", "second")
OTHER_CLUSTER = Output("another", "first")


def test_each_topic_is_written_once_in_a_micro_batch() -> None:
    outputs = MicroBatchOutputs()
    outputs.set_last_batch("query", "run", FIRST, 3)
    for output in (SECOND, OTHER_CLUSTER):
        outputs.check("query", "run", output, 3, [])
    outputs.check("query", "run", FIRST, 4, ["group"])
    outputs.check("query", "next run", FIRST, 3, ["group"])
    outputs.set_last_batch("query", "run", FIRST, 3)
    outputs.check("other query", "run", FIRST, 3, ["group"])
    with pytest.raises(MicroBatchRefused, match=r"written micro-batch 3 to topic first already.*with union"):
        outputs.check("query", "run", FIRST, 3, [])
    with pytest.raises(MicroBatchRefused, match=r"3 is in topic first already.*\(group a, b\).*commitOffsets=true"):
        outputs.check("query", "run", SECOND, 3, ["a", "b"])


def test_topics_of_clusters_with_and_without_an_id_are_named() -> None:
    outputs = MicroBatchOutputs()
    for cluster in (None, "cluster"):
        outputs.set_last_batch("query", "run", Output(cluster, "first"), 3)
    with pytest.raises(MicroBatchRefused, match="3 is in topic first, first already"):
        outputs.check("query", "run", SECOND, 3, ["group"])


def test_queries_that_have_ended_are_forgotten() -> None:
    outputs = MicroBatchOutputs()
    for number in range(3):
        outputs.set_last_writer(f"query {number}", "run", FIRST, outputs)
        outputs.set_last_batch(f"query {number}", "run", FIRST, 7)
    outputs.forget_ended(lambda query: query == "query 2")
    assert list(outputs._runs) == ["query 2"]
    with pytest.raises(MicroBatchRefused, match="has written micro-batch 7"):
        outputs.check("query 2", "run", FIRST, 7, [])


def test_a_query_that_starts_again_meanwhile_is_not_forgotten() -> None:
    outputs = MicroBatchOutputs()
    outputs.set_last_writer("query", "run", FIRST, outputs)

    def starts_again(query: str) -> bool:
        outputs.set_last_writer(query, "next run", FIRST, outputs)
        return False

    outputs.forget_ended(starts_again)
    assert outputs.is_last_writer("query", "next run", FIRST, outputs)


def test_the_last_writer_of_a_topic_is_known_for_each_run() -> None:
    outputs, one, two = MicroBatchOutputs(), object(), object()
    outputs.set_last_writer("query", "run", FIRST, one)
    outputs.set_last_writer("query", "run", SECOND, two)
    assert outputs.is_last_writer("query", "run", FIRST, one)
    outputs.set_last_writer("query", "run", FIRST, two)
    assert not outputs.is_last_writer("query", "run", FIRST, one)
    assert outputs.is_last_writer("query", "run", SECOND, two)
    assert not outputs.is_last_writer("query", "next run", SECOND, two)


@pytest.mark.parametrize(
    ("code", "fenced"),
    [(None, ["id"]), (ErrorCode.transactional_id_not_found, []), (ErrorCode.unsupported_version, ["id"])],
)
def test_the_transactional_id_of_an_earlier_release_is_fenced_if_it_may_exist(
    code: ErrorCode | None, fenced: list[str]
) -> None:
    found: list[str] = []

    def describe(ids: list[str]) -> dict[str, Any]:
        if code is not None:
            raise KafkaError(code, "refused")
        return {"id": SimpleNamespace(state="Empty")}

    admin: Any = SimpleNamespace(describe_transactions=describe, fence_producers=found.extend)
    _end_earlier(admin, "id")
    assert found == fenced


def test_a_refusal_to_describe_a_transactional_id_is_raised() -> None:
    def describe(ids: list[str]) -> None:
        raise KafkaError(ErrorCode.transactional_id_authorization_failed, "refused")

    admin: Any = SimpleNamespace(describe_transactions=describe, fence_producers=pytest.fail)
    with pytest.raises(KafkaError, match="refused"):
        _end_earlier(admin, "id")
