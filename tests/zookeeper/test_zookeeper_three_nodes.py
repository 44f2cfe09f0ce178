"""The tests of sessions, lost answers, two writers, owners, logins, permissions and outages, on three nodes.

Clients of an ensemble may be connected to different nodes, and a follower may be behind the leader."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from zookeeper.test_zookeeper_commands import test_without_permission_a_command_is_one_line  # noqa: F401  runs here, too
from zookeeper.test_zookeeper_consumers import (  # noqa: F401  run here, too
    test_a_commit_between_an_expired_session_and_its_notice_changes_nothing,
    test_a_commit_without_an_answer_and_a_second_writer,
    test_a_lost_answer_in_the_middle_of_a_commit,
    test_a_second_writer_gets_commit_failed,
    test_an_expired_session_loses_the_partitions,
    test_an_offset_that_was_deleted_or_created_meanwhile_is_not_overwritten,
    test_an_owner_keeps_a_consumer_from_reading_until_it_is_gone,
    test_the_login_of_a_consumer_comes_from_a_file,
    test_without_permission_the_error_names_the_path,
)
from zookeeper.test_zookeeper_dual_commit import (  # noqa: F401  run here, too
    test_a_second_writer_in_zookeeper_is_not_overwritten_by_a_lower_offset,
    test_after_a_session_expired_the_next_commit_owns_the_partitions_again,
)
from zookeeper.test_zookeeper_lost_answers import (  # noqa: F401  run here, too
    test_a_commit_is_lost_on_the_way,
    test_a_commit_without_an_answer_does_not_overwrite_a_second_writer,
    test_a_write_of_a_command_is_lost_on_the_way,
    test_two_writers_lose_no_write,
)
from zookeeper.test_zookeeper_outage import (  # noqa: F401  run here, too
    kill,
    test_a_consumer_that_starts_while_no_node_runs_waits_for_its_offsets,
    test_commits_wait_while_no_node_runs,
    test_dual_commits_go_on_while_no_node_runs,
)
from zookeeper.test_zookeeper_store import (  # noqa: F401  run here, too
    test_a_lost_answer_and_a_second_writer,
    test_a_lost_answer_is_looked_up,
    test_a_protected_znode_needs_a_login,
    test_all_offsets_are_written_or_none,
    test_an_expired_session_is_an_error_of_one_line,
)

import odradek

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[odradek.ZooKeeper]:
    """Three nodes, in place of the one that other tests share. Skips without Java."""
    from odradek.testing.zookeeper import ZooKeeperFailed

    try:
        made = odradek.ZooKeeper(nodes=3)
    except ZooKeeperFailed as error:
        pytest.skip(f"no ZooKeeper for this test: {error}")
    with made:
        yield made
