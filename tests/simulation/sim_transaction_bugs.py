"""Bugs of the transaction coordinator that the simulator has to find: each plants one, for the life of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import odradek.coordinator_runtime.unreplicated as unreplicated_module
import odradek.transactions.shard as shard_module
from odradek.broker.coordinators.transaction_runtime import TransactionRuntime
from odradek.coordinator_runtime.driver import Driver
from odradek.coordinator_runtime.replies import is_announcement
from odradek.coordinator_runtime.runtime import Runtime
from odradek.coordinator_runtime.unreplicated import UnreplicatedWrites
from odradek.core.effects import Announce, Park, Result, SetTimer, result_of
from odradek.core.errors import ErrorCode, KafkaError
from odradek.transactions.shard import TransactionShard


def drop_limits() -> None:
    TransactionShard.reply_limit_ms = lambda shard, request: None


def drop_limits_of_ends() -> None:
    shard_module.Park = lambda key, is_limited=False: Park(key)


def announce_early() -> None:
    send = UnreplicatedWrites.send

    def early(self: Any, end_offset: int, entries: Any, replies: Any, former: object = None) -> None:
        self._outgoing.send([reply for reply in replies if is_announcement(reply)])
        send(self, end_offset, entries, [reply for reply in replies if not is_announcement(reply)], former)

    UnreplicatedWrites.send = early


def forget_refused_ends() -> None:
    refused = TransactionShard.on_refused

    def without(self: TransactionShard, now_ms: int, entries: Any, error: ErrorCode) -> Result:
        result = refused(self, now_ms, entries, error)
        result.effects = [effect for effect in result.effects if not isinstance(effect, SetTimer)]
        return result

    TransactionShard.on_refused = without


def replay_refused_records() -> None:
    append = Driver._append

    def lenient(self: Any, write: Any, replies: Any, undone: Any) -> int | None:
        def tolerated() -> Any:
            try:
                return write()
            except KafkaError as error:
                if error.code is not ErrorCode.not_enough_replicas:
                    raise

                class Written:
                    base_offset = self._partition.log_end_offset

                return Written

        return append(self, tolerated, replies, undone)

    Driver._append = lenient


def keep_markers_of_former_terms() -> None:
    TransactionRuntime._end_term = Runtime._end_term


def follow_old_news() -> None:
    unload = Runtime.unload
    Runtime.unload = lambda self, index, leader_epoch=None: unload(self, index)


def show_unreplicated_records() -> None:
    TransactionShard.shown_to = lambda shard, request: ()


def time_out_with_success() -> None:
    unreplicated_module.TIMED_OUT = ErrorCode.none


def forget_decisions_in_loads() -> None:
    loaded = TransactionShard.on_loaded

    def silent(self: TransactionShard, now_ms: int) -> Result:
        result = result_of(loaded(self, now_ms))
        result.effects = [effect for effect in result.effects if not isinstance(effect, Announce)]
        return result

    TransactionShard.on_loaded = silent


COORDINATOR_BUGS: dict[str, tuple[Callable[[], None], str]] = {
    "replies have no limit": (drop_limits, "has waited for"),
    "ends have no limit": (drop_limits_of_ends, "EndTransaction.* has waited for"),
    "decisions are announced early": (announce_early, "comes before its decision|has no decision"),
    "a refused end is forgotten": (forget_refused_ends, "does not end"),
    "refused records are replayed": (replay_refused_records, "transactions of|is answered by|has no decision"),
    "markers of former terms are kept": (keep_markers_of_former_terms, "is of another term"),
    "old news is followed": (follow_old_news, "late news"),
    "replies show what is not replicated": (show_unreplicated_records, "is answered by"),
    "a timeout looks like success": (time_out_with_success, "is answered by"),
    "a load forgets decisions": (forget_decisions_in_loads, "does not end"),
}
"""Each bug, and what the simulator says about it."""
