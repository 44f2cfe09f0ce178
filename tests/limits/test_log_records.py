"""A broker in an application's process escapes names that clients choose, because the application prints log records
with its own handlers."""

from __future__ import annotations

import asyncio
import io
import logging
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.group_harness import GroupHarness

from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.broker.limits.host_limits import OVERRIDES, HostLimits
from odradek.broker.node.writer_role import log as server_log
from odradek.broker.settings.config import BrokerConfig
from odradek.codecs.offsets_topic import OffsetCommitValue, offset_key, offset_value
from odradek.coordinator_runtime.loader import Loader
from odradek.core.effects import SimpleRecord
from odradek.groups.config import GroupConfig
from odradek.groups.messages import OffsetDelete
from odradek.groups.offsets.commit_runs import CommitRuns
from odradek.groups.shard import GroupShard

EVIL = "evil\x1b]0;owned\x07\x9b31m\x7f\u202e\r\nFORGED"
SHOWN = r"evil\x1b]0;owned\x07\x9b31m\x7f\u202e\r\nFORGED"
ACTIVE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture
def shown() -> Iterator[io.StringIO]:
    """The output of an application's handler with the formatter of ``logging.basicConfig``."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    loggers = [
        logging.getLogger("odradek.broker"),
        logging.getLogger("odradek.cleaner"),
        logging.getLogger("odradek.storage"),
    ]
    for logger in loggers:
        logger.addHandler(handler)
    yield stream
    for logger in loggers:
        logger.removeHandler(handler)


def _assert_harmless(text: str, records: int = 1) -> None:
    assert ACTIVE.findall(text) == []
    assert len([line for line in text.splitlines() if not line.startswith("  ")]) == records
    assert SHOWN in text


@pytest.mark.parametrize("name", ["odradek.broker", "odradek.cleaner", "odradek.storage"])
def test_names_and_tracebacks_are_shown_with_escapes(name: str, shown: io.StringIO) -> None:
    log = logging.getLogger(name)
    log.warning("%s, %d times: %s", EVIL, 3, ValueError(EVIL))
    try:
        raise ValueError(EVIL)
    except ValueError:
        log.exception("a request of %s failed", EVIL)
    _assert_harmless(shown.getvalue(), records=2)
    assert f"WARNING {SHOWN}, 3 times: {SHOWN}\n" in shown.getvalue()


def test_a_record_without_client_names_is_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("größer")
    server_log.warning("%s-%d: %s", "topic", 3, error)
    (record,) = caplog.records
    assert (record.msg, record.args) == ("%s-%d: %s", ("topic", 3, error))


def test_a_host_name_set_at_run_time_is_shown_with_escapes(shown: io.StringIO) -> None:
    async def look_up() -> None:
        jobs: list[Callable[[], None]] = []
        settings = BrokerConfig({OVERRIDES: f"{EVIL.replace(':', '')}:1"})
        limits = HostLimits(settings, begin_thread=lambda _, job: jobs.append(job))
        limits.apply_settings()
        await asyncio.to_thread(*jobs)

    asyncio.run(look_up())
    _assert_harmless(shown.getvalue())


def test_a_load_that_fails_shows_group_and_topic_with_escapes(shown: io.StringIO) -> None:
    shard = GroupShard(GroupConfig())

    def fail(*_: object) -> None:
        raise ValueError(EVIL)

    shard.replay_commits = fail
    commit = SimpleRecord(offset_key(EVIL, "t", 0), offset_value(OffsetCommitValue(5, 1, "", 0)))
    data = encode_batch([commit], now_ms=0)
    ((position, header),) = scan(data)
    loader = Loader(shard, "log", CommitRuns)
    deque(loader.take(data, position, header, 0), 0)
    deque(loader.finish(), 0)
    _assert_harmless(shown.getvalue())
    assert "WARNING log: the commits of group evil" in shown.getvalue()
    assert shard.committed(EVIL, "t", 0) == OffsetCommitValue(5, 1, "", 0), "the commits are replayed one by one"


def test_a_request_that_fails_shows_its_error_with_escapes(shown: io.StringIO) -> None:
    harness = GroupHarness(partition_count=1)

    def fail(now_ms: int, request: Any) -> Any:
        raise RuntimeError(request.group_id)

    harness.shard("g")._handlers[OffsetDelete] = fail
    harness.runtime.submit(0, OffsetDelete(EVIL, []))
    text = shown.getvalue()
    assert "RuntimeError: evil" in text
    assert ACTIVE.findall(text) == []
    assert [line for line in text.splitlines() if not line.startswith("  ")] == [
        "ERROR __consumer_offsets-0: OffsetDelete failed"
    ]
