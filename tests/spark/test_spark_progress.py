"""The progress reports of workers, and their use in the driver, over real datagrams."""

from __future__ import annotations

import json
import socket
import threading
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from support.brokers import eventually

from odradek.core.ids import TopicPartition
from odradek.spark import progress
from odradek.spark.progress import OPTION, progress_options, report_progress

T0 = TopicPartition("t", 0)


def session(**settings: str) -> Any:
    known = {"spark.driver.host": "127.0.0.1"} | settings
    return SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: known))


def batches(*last: int) -> Any:
    return (pa.record_batch({"offset": pa.array([offset], pa.int64())}) for offset in last)


def test_each_arrow_batch_advances_a_piece_and_missing_offsets_at_its_end_count() -> None:
    calls: list[int] = []
    with progress_options(session(), calls.append) as options:
        passing = report_progress(options[OPTION], batches(14, 17), T0, 10, 20)
        assert next(passing)["offset"][0].as_py() == 14
        assert next(passing)["offset"][0].as_py() == 17
        eventually(lambda: calls == [5], what="the first batch is reported when the second is requested")
        assert list(passing) == []
    assert calls == [5, 3, 2]


def test_a_repeated_task_counts_once() -> None:
    calls: list[int] = []
    with progress_options(session(), calls.append) as options:
        for _ in range(2):
            assert len(list(report_progress(options[OPTION], batches(4, 9), T0, 0, 10))) == 2
        assert len(list(report_progress(options[OPTION], batches(4), TopicPartition("t", 1), 0, 5))) == 1
    assert calls == [5, 5, 5]


def test_a_long_query_stores_only_the_newest_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_MOST_PIECES", 2)
    calls: list[int] = []
    with progress_options(session(), calls.append) as options:
        for start in (0, 10, 20, 20, 0):
            list(report_progress(options[OPTION], batches(), T0, start, start + 5))
    assert calls == [5, 5, 5, 5], "the piece from 20 is stored, the piece from 0 is not any more"


def test_datagrams_of_others_do_not_count() -> None:
    calls: list[int] = []
    with progress_options(session(), calls.append) as options, socket.socket(type=socket.SOCK_DGRAM) as stranger:
        host, port, token = json.loads(options[OPTION])
        infinite, deep = b'["x", "t", 0, 0, Infinity]', b"[" * 2000
        ours = (json.dumps([token, *rest]).encode() for rest in (["t", 0, 0, float("inf")], ["t"], ["t", 0, 0, None]))
        strangers = json.dumps(["x" * len(token), "t", 0, 0, 9]).encode()
        for said in (b"", b"\xff", b"[]", b"7", b"{}", infinite, deep, strangers, *ours):
            stranger.sendto(said, (host, port))
        list(report_progress(options[OPTION], batches(1), T0, 0, 2))
    assert calls == [2]


class EndlessSocket:
    """A socket that always has data. At the first read it asks the receiver to stop."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop

    def settimeout(self, seconds: float) -> None:
        pass

    def recv(self, size: int) -> bytes:
        self.stop.set()
        return b"noise"


def test_endless_datagrams_do_not_prevent_the_end_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_DRAIN_S", 0.1)
    stop = threading.Event()
    ear = threading.Thread(target=progress._listen, args=(EndlessSocket(stop), "token", print, stop), daemon=True)
    ear.start()
    ear.join(60)
    assert not ear.is_alive()


@pytest.mark.parametrize("to", ['["127.0.0.1", 9, "x"]', '["no.such.host.invalid", 9, "x"]'])
def test_a_driver_that_cannot_be_reached_stops_no_task(to: str) -> None:
    progress._connection.cache_clear()
    assert len(list(report_progress(to, batches(1, 2), T0, 0, 3))) == 2


def test_an_address_that_cannot_be_bound_means_a_run_without_progress() -> None:
    with progress_options(session(**{"spark.driver.bindAddress": "203.0.113.1"}), lambda more: None) as options:
        assert options == {}
    assert [batch.num_rows for batch in report_progress(None, batches(1), T0, 0, 2)] == [1]
