"""Delivery of the groups' replies in order. A few replies are delivered at once, many in steps."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from odradek.coordinator_runtime.replies import MAX_AT_ONCE, PER_STEP, PendingReply, ReplyQueue, announcement
from odradek.core.deferred import Deferred
from odradek.groups.messages import ListGroups


def _some(first: int, count: int, came: list[int]) -> list[PendingReply]:
    made: list[PendingReply] = []
    for number in range(first, first + count):
        promise: Deferred[int] = Deferred()
        promise.then(came.append)
        made.append((ListGroups(), promise, number))
    return made


def test_a_few_replies_are_delivered_at_once() -> None:
    came: list[int] = []
    steps: list[Generator[None, None, None]] = []
    ReplyQueue(steps.append).send(_some(0, MAX_AT_ONCE, came))
    assert came == list(range(MAX_AT_ONCE))
    assert not steps


def test_many_replies_are_delivered_in_steps_and_later_replies_follow() -> None:
    came: list[int] = []
    steps: list[Generator[None, None, None]] = []
    answers = ReplyQueue(steps.append)
    answers.send(_some(0, 1000, came))
    assert not came
    next(steps[0])
    assert came == list(range(PER_STEP))
    answers.send(_some(1000, 1, came))
    for _ in steps[0]:
        pass
    assert came == list(range(1001))
    answers.send(_some(1001, 500, came))
    assert len(steps) == 2
    next(steps[1])
    answers.send_all()
    assert came == list(range(1501))
    assert next(steps[1], "ended") == "ended"


def test_announcements_that_wait_are_dropped_and_replies_are_not() -> None:
    came: list[int] = []
    announced: list[int] = []
    steps: list[Generator[None, None, None]] = []
    queue = ReplyQueue(steps.append)
    replies = _some(0, MAX_AT_ONCE, came)
    announcements = [announcement(lambda _, value: announced.append(value), 0, n) for n in range(MAX_AT_ONCE)]
    queue.send([one for pair in zip(replies, announcements, strict=True) for one in pair])
    next(steps[0])
    assert len(came) == len(announced) == PER_STEP // 2
    queue.drop_announcements()
    for _ in steps[0]:
        pass
    assert came == list(range(MAX_AT_ONCE))
    assert len(announced) == PER_STEP // 2


def test_a_reply_that_cannot_be_delivered_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    came: list[int] = []
    steps: list[Generator[None, None, None]] = []
    answers = _some(0, 300, came)
    answers[7][1].resolve(-1)  # this reply cannot be delivered: its promise is already resolved
    ReplyQueue(steps.append).send(answers)
    for _ in steps[0]:
        pass
    assert came == [-1, *(number for number in range(300) if number != 7)]
    assert len(caplog.records) == 1
