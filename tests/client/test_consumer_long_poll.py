"""max_poll_interval_ms does not count the wait within a poll."""

from __future__ import annotations

import pytest
from support.brokers import unique

from odradek import Admin, Consumer
from odradek.client import NewTopic


@pytest.mark.claim(74, part="c")
def test_a_member_that_waits_in_a_poll_stays_in_the_group(bootstrap: str) -> None:
    topic, group = unique("empty"), unique("g")
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1)])
        with Consumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            max_poll_interval_ms=400,
            session_timeout_ms=6000,
            heartbeat_interval_ms=50,
        ) as consumer:
            consumer.subscribe([topic])
            while not consumer.assignment():
                consumer.poll(0.1)
            (member,) = admin.describe_groups([group])[group].members
            assert not consumer.poll(1.6)
            assert consumer.assignment()
            (after,) = admin.describe_groups([group])[group].members
            assert after.member_id == member.member_id
