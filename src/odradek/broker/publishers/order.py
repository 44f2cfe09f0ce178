"""The publishers of a broker, in their order."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from odradek.broker.partitions.private_directory import PrivateDirectory
from odradek.broker.publishers.broker_settings import BrokerSettings
from odradek.broker.publishers.coordinator_loads import CoordinatorElections, CoordinatorResignations
from odradek.broker.publishers.logs import CleanerPublisher, PartitionLogs

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.coordinators.registry import Coordinators
    from odradek.broker.limits.admissions import Admissions
    from odradek.broker.limits.host_limits import HostLimits
    from odradek.broker.limits.quotas import Quotas
    from odradek.broker.metadata.authorizer import Authorizer
    from odradek.broker.metadata.catalog_view import Publisher
    from odradek.broker.metadata.committed_catalog import CommittedCatalog
    from odradek.broker.metadata.delegation_tokens import DelegationTokens
    from odradek.broker.metadata.producer_ids import ProducerIds
    from odradek.broker.metadata.quorum import MetadataQuorum
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.broker.publishers.logs import LogCleanerOwner
    from odradek.broker.settings.config import BrokerConfig
    from odradek.core.deferred import Deferred

    # For type checks only: at run time the Protocol would occupy kilobytes.

    class PublishedBroker(LogCleanerOwner, Protocol):
        """The parts of a broker that its publishers use."""

        authorizer: Authorizer | None
        tokens: DelegationTokens | None
        config: BrokerConfig
        coordinators: Coordinators
        directory: LogDirectory
        host_limits: HostLimits
        admissions: Admissions
        quotas: Quotas

        @property
        def catalog(self) -> CommittedCatalog: ...

        @property
        def quorum(self) -> MetadataQuorum: ...

        @property
        def producer_ids(self) -> ProducerIds: ...

        @property
        def node_id(self) -> int: ...

        def in_thread(self, job: Callable[[], None]) -> Deferred[BaseException | None]: ...


def in_order(broker: PublishedBroker, begin_epochs: Callable[[], None]) -> list[Publisher]:
    """Returns the publishers of a broker in their order. The catalogue is one of them: it shows new topics.

    ``begin_epochs`` is called after an unclean stop. Raises StorageError."""
    config, directory = broker.config, broker.directory
    return [
        # Before the logs: a coordinator completes its waiting requests and stops its writes to logs that are deleted.
        *(CoordinatorResignations(coordinator, broker.node_id) for coordinator in broker.coordinators),
        # Before the logs: the broker's settings are the defaults of topics. Invalid settings end a start before it
        # changes anything on the disk.
        BrokerSettings(config, broker.node_id, broker.host_limits, broker.admissions),
        # Before the reply to a request that stores credentials: it closes the directory to other users.
        PrivateDirectory(directory, broker.in_thread),
        # At any place: no other publisher uses quotas. They apply before the reply to the request that set them.
        broker.quotas,
        # At any place: an ACL holds before the reply to the request that makes it.
        *([] if broker.authorizer is None else [broker.authorizer]),
        # At any place: a token can be used before the reply to the request that makes it.
        *([] if broker.tokens is None else [broker.tokens]),
        # Before the image: requests see a topic only when all of its logs exist.
        PartitionLogs(directory, config, begin_epochs, broker.quorum),
        # The image: from here on, requests see new topics.
        broker.catalog,
        # After the logs: it removes deleted logs from the cleaner's checkpoint before a later log has the same name.
        CleanerPublisher(directory, config, broker),
        # After the logs and the image: a coordinator reads its topic, and looks up changed topics in the image.
        *(CoordinatorElections(coordinator, directory) for coordinator in broker.coordinators),
        # At any place: requests that wait for a producer id continue in a later round of the event loop.
        broker.producer_ids,
    ]


def no_epochs() -> None:
    """Begins no leader epochs: in a cluster only the controller does, also after an unclean stop."""


def authorizer_of(config: BrokerConfig) -> Authorizer | None:
    """Returns the authorizer that the settings ask for, or None."""
    if not config.authorizer_class_name:
        return None
    from odradek.broker.settings.protection import AUTHORIZERS  # few brokers have one

    module, _, name = AUTHORIZERS[config.authorizer_class_name.strip()].partition(":")
    kind: type[Authorizer] = getattr(import_module(f"odradek.broker.metadata.{module}"), name)
    return kind.of(config)


def tokens_of(config: BrokerConfig) -> DelegationTokens | None:
    """Returns the delegation tokens that the settings allow, or None."""
    if not config.delegation_token_secret_key:
        return None
    from odradek.broker.metadata.delegation_tokens import DelegationTokens  # few brokers have them

    return DelegationTokens.of(config)
