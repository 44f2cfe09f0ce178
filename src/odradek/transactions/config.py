"""Settings of the transaction coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from odradek.core.state_machines.declared_settings import DeclaredSettings, setting


@dataclass(frozen=True, slots=True)
class TransactionConfig(DeclaredSettings):
    """The settings of transactional ids. Times are in milliseconds."""

    max_timeout_ms: int = setting(
        "transaction.max.timeout.ms | int | 900000 | 1.. | The longest transaction timeout that a producer may request."
    )
    id_expiration_ms: int = setting(
        "transactional.id.expiration.ms | int | 604800000 | 1.. "
        "| The time without a change after which a transactional id without an open transaction is removed."
    )
    abort_interval_ms: int = setting(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms | int | 10000 | 1.. "
        "| The interval of the search for transactions that have exceeded their timeout."
    )
    removal_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms | int | 3600000 | 1.. "
        "| The interval of the search for expired transactional ids."
    )
