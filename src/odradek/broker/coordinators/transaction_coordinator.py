"""The coordinator of transactional ids, as ``broker/coordinators/registry`` registers it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.controller.write_events import TopicSpec
from odradek.core.ids import TRANSACTION_TOPIC

if TYPE_CHECKING:
    from odradek.broker.coordinators.kinds import CoordinatorBroker
    from odradek.broker.coordinators.transaction_runtime import TransactionRuntime
    from odradek.broker.settings.config import BrokerConfig
    from odradek.catalog.delta import Delta
    from odradek.core.deferred import Deferred
    from odradek.core.errors import ErrorCode
    from odradek.core.ids import EndTransactionMarker


class TransactionCoordinator:
    key_type = 1
    name = "transactional ids"
    topic = TRANSACTION_TOPIC
    is_frequent = False
    partitions_setting = "transaction.state.log.num.partitions"

    def topic_spec(self, config: BrokerConfig) -> TopicSpec:
        return TopicSpec(
            TRANSACTION_TOPIC,
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": str(config.transaction_state_log_min_isr),
                "segment.bytes": str(config.transaction_state_log_segment_bytes),
                "unclean.leader.election.enable": "false",
            },
        )

    def new_runtime(self, broker: CoordinatorBroker) -> TransactionRuntime:
        from odradek.broker.coordinators.transaction_markers import MarkerWriter
        from odradek.broker.coordinators.transaction_runtime import TransactionRuntime
        from odradek.catalog.features import TRANSACTION
        from odradek.transactions.config import TransactionConfig

        def write_offsets_marker(index: int, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
            return broker.groups.write_marker(index, marker)  # the runtime of groups is made at its first use

        def load_of_groups(index: int) -> Deferred[None] | None:
            return broker.groups.load_end(index)

        catalog = broker.catalog
        return TransactionRuntime(
            TransactionConfig.of(broker.config.value),
            broker.coordinator_environment,
            new_producer_id=broker.producer_ids.take,
            version=lambda: catalog.features().get(TRANSACTION, 0),
            markers=MarkerWriter(catalog, broker.partition, write_offsets_marker, load_of_groups),
            overdue=broker.role.overdue_markers(),
            across=broker.role.across_brokers(),
        )

    def on_metadata_update(self, runtime: TransactionRuntime, delta: Delta) -> None:
        """Passes on changed leaders. The next attempt to write a marker finds that a deleted topic does not exist."""
        runtime.on_metadata_update(delta)


TRANSACTIONS = TransactionCoordinator()
