"""The types of handlers: the context of a request, the services of the broker, and the kinds of replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from odradek.wire import schemas

if TYPE_CHECKING:
    import logging
    from pathlib import Path
    from typing import Protocol
    from uuid import UUID

    from odradek.broker.controller.registered_brokers import RegisteredBrokers
    from odradek.broker.controller.write_events import Controller
    from odradek.broker.coordinators.group_runtime import GroupRuntime
    from odradek.broker.coordinators.registry import Coordinators
    from odradek.broker.limits.quotas import Quotas
    from odradek.broker.limits.request_elements import RequestElements
    from odradek.broker.limits.request_memory import RequestMemory
    from odradek.broker.loop.leftovers import Leftovers
    from odradek.broker.loop.scheduler import Scheduler, Steps
    from odradek.broker.loop.workers import Workers
    from odradek.broker.metadata.authorizer import Authorizer
    from odradek.broker.metadata.brokers import Brokers
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.metadata.delegation_tokens import DelegationTokens
    from odradek.broker.metadata.producer_ids import ProducerIds
    from odradek.broker.metadata.quorum import MetadataQuorum
    from odradek.broker.partitions.fetch_sessions import FetchSessions
    from odradek.broker.partitions.partition import Partition
    from odradek.broker.partitions.purgatory import Purgatory
    from odradek.broker.partitions.transaction_verification import PartitionsOfTransactions
    from odradek.broker.settings.config import BrokerConfig
    from odradek.broker.settings.listener import Listener
    from odradek.core.deferred import Deferred
    from odradek.core.errors import ErrorCode
    from odradek.security.principal import Principal
    from odradek.wire.chunks import Chunk
    from odradek.wire.frames import RequestHead

Reply = Mapping[str, object] | bytes | list["Chunk"] | None
Later: TypeAlias = "Reply | Deferred[Reply]"
"""A reply, or the promise of one."""
Handle = Callable[["BrokerServices", "Context", object], "Later | Steps[Later]"]


class Context:
    """A request's header and connection. ``client_host`` has Kafka's format, an address after a slash. ``principal``
    is that of the connection when the request arrived; a later login does not change it.

    ``throttle_ms`` is the throttle time in the reply (broker/limits/quotas). A handler that works in shares
    (broker/loop/scheduler) sets ``must_finish`` while it has to continue even if its client disconnects.
    ``elements``: the number of the message's elements, if it is not small. ``is_exempt``: no quota throttles the
    request, because it is that of another broker.
    """

    __slots__ = (
        "_is_reply_long", "api_key", "client_host", "client_id", "connection", "correlation_id", "elements",
        "is_exempt", "must_finish", "principal", "request_bytes", "throttle_ms", "version",
    )  # fmt: skip

    def __init__(self, head: RequestHead, connection: Client, request_bytes: int = 0) -> None:
        self.api_key = head.api_key
        self.version = head.version
        self.client_id = head.client_id
        self.correlation_id = head.correlation_id
        self.client_host = connection.client_host
        self.connection = connection
        self.request_bytes = request_bytes
        self.principal = connection.principal
        self.throttle_ms = 0
        self.must_finish = self.is_exempt = False
        self.elements = 0
        self._is_reply_long = False

    @property
    def user(self) -> str:
        """The name that quotas apply to."""
        return self.principal.name

    @property
    def api_name(self) -> str:
        """Kafka's name of the request, such as ``DescribeAcls``."""
        return schemas.api_name(self.api_key).title().replace("_", "")

    def grow_reply(self, size: int) -> None:
        """Counts ``size`` more bytes of a long reply while a handler makes it.

        Raises Hangup if the reply gets too long or there is no memory for it.
        """
        if not self._is_reply_long:
            self._is_reply_long = True
            self.connection.begin_long_reply()
        self.connection.grow_reply(size)

    def count_reply(self, size: int) -> None:
        """Counts a finished reply that ``grow_reply`` has not counted. Raises Hangup if there is no memory for it."""
        if not self._is_reply_long:
            self.connection.count_reply(size)

    def throttle(self, duration_ms: int) -> None:
        """Mutes the connection for ``duration_ms`` and reports this in the reply. The longest duration counts."""
        if duration_ms > self.throttle_ms:
            self.throttle_ms = duration_ms
            self.connection.mute(duration_ms)


if TYPE_CHECKING:
    # For type checks only: at run time each Protocol would occupy kilobytes.

    class Abandonable(Protocol):
        """A waiting request that its connection abandons when the client disconnects."""

        def abandon(self) -> None: ...

    class AbandonableTask(Abandonable, Protocol):
        """A request that needs several shares. ``runs_on``: whether it has neither ended nor been abandoned."""

        @property
        def runs_on(self) -> bool: ...

    class Client(Protocol):
        """The connection of a request."""

        client_host: str
        listener: Listener | None
        local_host: str
        principal: Principal
        sends_files: bool
        parked: set[Abandonable]
        parked_partitions: int

        def mute(self, duration_ms: int) -> None:
            """Reads and serves no request for ``duration_ms``."""

        def allow_requests(self, most_bytes: int) -> None:
            """Sets the size of the longest request."""

        def hang_up(self, reason: str, logger: logging.Logger = ...) -> None:
            """Stops reading. The connection closes when all earlier requests have their replies."""

        def begin_long_reply(self) -> None: ...

        def grow_reply(self, size: int) -> None:
            """Counts bytes of an unfinished reply. Raises Hangup if it gets too long or there is no memory for it."""

        def count_reply(self, size: int) -> None:
            """Counts the bytes of a finished reply. Raises Hangup if there is no memory for it."""

        def pause_for(self, task: AbandonableTask) -> None:
            """Serves no later request until ``release``, because ``task`` needs several shares for its request."""

        def release(self, task: Abandonable) -> None: ...

        def serve_waiting(self) -> None:
            """Serves the waiting requests."""

        def abort(self) -> None:
            """Closes the connection at once."""

    class ServedApi(Protocol):
        """An API as ApiVersions lists it, and the function that serves it."""

        key: int
        advertised_oldest: int
        newest: int
        handle: Handle

    class RoleServices(Protocol):
        """What handlers ask about the role of their node."""

        has_broker_settings: bool
        """Whether the node is a broker, so that its own settings are those of a broker."""

        def check_broker_name(self, name: str) -> None:
            """Raises KafkaError (INVALID_REQUEST) if the node does not answer for the settings of this broker. The
            name "" means all brokers."""

    class NodeServices(Protocol):
        """The parts of a node that handlers at all kinds of listeners may use."""

        config: BrokerConfig
        authorizer: Authorizer | None
        """Answers what a client may do. None: every client may do everything."""
        tokens: DelegationTokens | None
        """The delegation tokens. None: the broker has none."""
        controller: Controller
        purgatory: Purgatory
        quotas: Quotas
        scheduler: Scheduler

        @property
        def role(self) -> RoleServices:
            """What differs between a lone broker, a broker of a cluster and its controller."""

        @property
        def brokers(self) -> Brokers:
            """The brokers that replies name."""

        @property
        def catalog(self) -> CatalogView: ...

        @property
        def quorum(self) -> MetadataQuorum:
            """The state of the metadata log, which handlers only read."""

        @property
        def leftovers(self) -> Leftovers: ...

        request_memory: RequestMemory
        """The budget of the bytes of large requests."""

        @property
        def request_elements(self) -> RequestElements:
            """The budget of the elements of all requests in progress."""

        @property
        def workers(self) -> Workers:
            """Threads and memory for work that takes longer than a share."""

        @property
        def listeners(self) -> tuple[Listener, ...]: ...

        @property
        def apis(self) -> Mapping[int, ServedApi]:
            """The served APIs by key."""

        @property
        def node_id(self) -> int: ...

        @property
        def cluster_id(self) -> str: ...

        def dispatch(self, frame: bytes, connection: Client) -> list[Chunk] | Deferred[list[Chunk] | None]:
            """Serves a request that another request contains. Raises ValueError, Hangup."""

        def now_ms(self) -> int:
            """Returns the time of the broker's clock, in ms since 1970."""

        def steady_ms(self) -> int:
            """Returns the time of a clock that no test moves and that never jumps."""

        def new_uuid(self) -> UUID: ...

        def advertised_address(self, context: Context) -> tuple[str, int]:
            """Returns the host and port at which this client reaches this node."""

        def log_failure(self, topic: str, partition_count: int) -> str:
            """Returns why a log of a new topic could not be created, or an empty text."""

    class BrokerServices(NodeServices, Protocol):
        """The parts of a broker that handlers may use. A handler that needs another part adds it here first.

        A handler passes each change of the catalogue to the controller. The publishers (``broker/publishers``)
        then apply it to logs, quotas, settings and groups. A test checks that handlers do not do this themselves.
        """

        coordinators: Coordinators
        fetch_sessions: FetchSessions

        @property
        def producer_ids(self) -> ProducerIds: ...

        @property
        def groups(self) -> GroupRuntime:
            """The runtime of groups, for the handlers of group APIs. Handlers of other coordinators call
            ``coordinators.runtime``."""

        @property
        def partitions_of_transactions(self) -> PartitionsOfTransactions: ...

        def partition(self, topic: str, index: int) -> Partition | None:
            """Returns a partition that this broker leads. None for any other: ``missing_partition`` has the error."""

        def missing_partition(self, topic: str, index: int) -> ErrorCode:
            """Returns NOT_LEADER_OR_FOLLOWER for a partition of the catalogue, else UNKNOWN_TOPIC_OR_PARTITION."""

        @property
        def partitions(self) -> Mapping[tuple[str, int], Partition]:
            """All partitions whose logs this broker has, led or not."""

        @property
        def log_dir(self) -> Path:
            """The directory with the logs of the partitions."""

        def checkpoint_log_starts(self) -> None:
            """Writes the checkpoint of log start offsets. Raises OSError."""

    class ControllerRoleServices(RoleServices, Protocol):
        """What handlers ask at a cluster's controller."""

        @property
        def registered_brokers(self) -> RegisteredBrokers: ...

    class ControllerServices(NodeServices, Protocol):
        """The services of a cluster's controller, for the APIs that only its listener has. Such an API is one handler
        file and one method of ``cluster/control.ClusterControl``, which the handler submits to
        ``role.registered_brokers``."""

        @property
        def role(self) -> ControllerRoleServices: ...
