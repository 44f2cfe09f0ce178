"""Commits of a table's group by a transactional producer, so that a paused run cannot commit after a newer one.

Kafka has no conditional OffsetCommit. But the coordinator of a transactional id gives each InitProducerId a higher
epoch, and refuses the earlier epochs from then on. A run calls ``fence`` before it reads the table's log, and commits
what the log says in a transaction of this epoch. So a run whose look at the log is older than another run's commit is
refused (docs/notes/table-commits.md).
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.client.admin import Admin
from odradek.client.errors import GroupIdNotFound, GroupNotEmpty, RequestTimedOut
from odradek.core.errors import OdradekError
from odradek.core.ids import ConsumerGroupMetadata, OffsetAndMetadata
from odradek.spark.offsets.commit_refusal import TABLE_ID_PREFIX
from odradek.spark.offsets.plan import Commits
from odradek.spark.offsets.stable_offsets import is_unstable, stable_offsets

if TYPE_CHECKING:
    from odradek.client.config import ClientConfig
    from odradek.client.producer import Producer

_BLOCK_MS = 20_000
_TRANSACTION_MS = 10_000
"""A run that is killed inside its transaction leaves the group's offsets unstable for this long, at most."""
_WAITS_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
"""A cluster may write the marker of a transaction after its reply."""
_LOOK_MS = 500

log = logging.getLogger("odradek.pipelines")


class FenceLost(Exception):
    """Another run has fenced this one since its ``fence``; nothing is committed. ``fence`` again, then read the log."""


class GroupFence:
    """The commits of one run. ``table_id`` returns the id of the table, the same for all its runs."""

    def __init__(self, client: ClientConfig, table_id: Callable[[], str]) -> None:
        self._client = client
        self._table_id = table_id
        self._producer: Producer | None = None
        self._pause = threading.Event()  # only waited for
        self._has_looked = False  # for open transactions of others

    def fence(self) -> None:
        """Fences the earlier producers, unless this run has done so and no later one is known. Ends their open
        transactions. Raises OdradekError."""
        if self._producer is not None:
            return
        from odradek.client.producer import Producer

        producer = Producer(
            self._client,
            transactional_id=f"{TABLE_ID_PREFIX}{self._table_id()}",
            max_block_ms=_BLOCK_MS,
            transaction_timeout_ms=_TRANSACTION_MS,
        )
        try:
            producer.init_transactions()
        except BaseException:
            producer.close(timeout=0)
            raise
        self._producer = producer

    def commit(self, admin: Admin, group: str, commits: Commits) -> None:
        """Commits offsets in one transaction, and waits until readers see them. ``fence`` must have run before.

        It does not wait for the transactions of others, which no fence of the table ends: they may stay open as long as
        their clients want, and the group has our offsets meanwhile. A transaction may commit to a group with members,
        so the members are looked for first. Raises FenceLost, GroupNotEmpty, OdradekError.
        """
        from odradek.client.producer.errors import ProducerFenced

        assert self._producer is not None
        if _has_members(admin, group):
            raise GroupNotEmpty(f"group {group} has live members")
        try:
            with self._producer.transaction():
                self._producer.send_offsets_to_transaction(commits, ConsumerGroupMetadata(group))
        except ProducerFenced:
            self.close()
            raise FenceLost from None
        except OdradekError:
            self.close()  # the outcome is unknown: the next ``fence`` ends the transaction
            raise
        self._wait(admin, group, commits)
        self._warn(group, commits)

    def _wait(self, admin: Admin, group: str, commits: Commits) -> None:
        """Waits until the commit is visible. If the group has other offsets then, another client has committed: waits
        until they are sure. Raises OdradekError."""
        for wait_s in _WAITS_S:
            self._pause.wait(wait_s)
            found = admin.list_group_offsets(group, commits)
            if all(tp in found and _is_same(found[tp], commit) for tp, commit in commits.items()):
                return
        stable_offsets(admin, group, commits)

    def _warn(self, group: str, commits: Commits) -> None:
        """Logs once if a transaction of another client is open that has offsets of these partitions."""
        if self._has_looked:
            return
        self._has_looked = True
        client = dataclasses.replace(self._client, default_api_timeout_ms=_LOOK_MS)
        try:
            with Admin(client) as admin:
                admin.list_group_offsets(group, commits, require_stable=True)
        except RequestTimedOut as error:
            if is_unstable(error):
                log.warning(
                    "group %s has the table's offsets, and a transaction of another client is open that has offsets of "
                    "this group, too: consumers of the group wait until it ends. Give the table a group of its own, or "
                    "find the transaction with `odradek transactions list`",
                    group,
                )
        except OdradekError as error:
            log.debug("open transactions of group %s are unknown: %s", group, error)

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close(timeout=0)
            self._producer = None


def _is_same(found: OffsetAndMetadata, commit: OffsetAndMetadata) -> bool:
    return (found.offset, found.metadata) == (commit.offset, commit.metadata)


def _has_members(admin: Admin, group: str) -> bool:
    try:
        return bool(admin.describe_groups([group])[group].members)
    except GroupIdNotFound:
        return False
