"""What the handler of an API sees: who asks, which services of the broker it may use, and what it may return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from odradek.core.errors import Refusal

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Protocol
    from uuid import UUID

    from odradek.broker.catalog_image import CatalogImage
    from odradek.broker.config import BrokerConfig
    from odradek.broker.controller import Controller
    from odradek.broker.fetch_sessions import FetchSessions
    from odradek.broker.group_runtime import GroupRuntime
    from odradek.broker.leftovers import Leftovers
    from odradek.broker.partition import Partition
    from odradek.broker.producer_ids import ProducerIds
    from odradek.broker.purgatory import Purgatory
    from odradek.broker.quotas import Quotas
    from odradek.broker.scheduler import Scheduler, Steps, Task
    from odradek.broker.workers import Workers
    from odradek.core.deferred import Deferred
    from odradek.wire.chunks import Chunk
    from odradek.wire.frames import RequestHead

Reply = Mapping[str, Any] | bytes | list["Chunk"] | None
Handle = Callable[[Any, "Context", Any], "Reply | Deferred[Reply] | Steps[Reply]"]
ANONYMOUS = "ANONYMOUS"
"""The user of a client that has not said who it is, as Kafka calls it."""


class Hangup(Refusal):
    """Raised by a handler where Kafka answers by closing the connection; the message says why."""


class Context:
    """Who asks: the request's header and the connection it came on. ``client_host`` is as Kafka prints it.

    ``throttle_ms`` is what the reply says of how long the connection rests (broker/quotas). ``must_finish`` is set by
    a handler that works in shares and may not stop half-way when its client disconnects.
    """

    __slots__ = (
        "_is_reply_long", "api_key", "client_host", "client_id", "connection", "must_finish", "request_bytes",
        "throttle_ms", "user", "version",
    )  # fmt: skip

    def __init__(self, head: RequestHead, connection: Client, request_bytes: int = 0) -> None:
        self.api_key = head.api_key
        self.version = head.version
        self.client_id = head.client_id
        self.client_host = connection.client_host
        self.connection = connection
        self.request_bytes = request_bytes
        self.user = ANONYMOUS
        self.throttle_ms = 0
        self.must_finish = False
        self._is_reply_long = False

    def grow_reply(self, size: int) -> None:
        """Counts bytes of a long reply that is being made. Raises Hangup where it becomes too long."""
        if not self._is_reply_long:
            self._is_reply_long = True
            self.connection.begin_long_reply()
        self.connection.grow_reply(size)

    def hold_reply(self, size: int) -> None:
        """Counts the bytes of a long reply that is ready. Raises Hangup where there is no memory for it."""
        if not self._is_reply_long:
            self.connection.hold_reply(size)

    def throttle(self, duration_ms: int) -> None:
        """Lets the connection rest: nothing is read from it for that long, and the reply says so."""
        if duration_ms > self.throttle_ms:
            self.throttle_ms = duration_ms
            self.connection.mute(duration_ms)


if TYPE_CHECKING:
    # Types alone: at run time each Protocol would take kilobytes.

    class Abandonable(Protocol):
        """Something that waits for a client and is forgotten when the client goes."""

        def abandon(self) -> None: ...

    class Client(Protocol):
        """The connection that a request came on."""

        client_host: str
        local_host: str
        sends_files: bool
        parked: set[Abandonable]
        parked_partitions: int

        def mute(self, duration_ms: int) -> None:
            """Reads and serves nothing for so long."""

        def begin_long_reply(self) -> None: ...

        def grow_reply(self, size: int) -> None:
            """Counts bytes of a reply in the making. Raises Hangup where there is no memory for them."""

        def hold_reply(self, size: int) -> None:
            """Counts the bytes of a reply that is ready. Raises Hangup likewise."""

        def hold(self, task: Task[Any]) -> None:
            """Serves nothing until ``release``: a request that takes several shares comes before those behind it."""

        def release(self, task: Task[Any]) -> None: ...

        def go_on(self) -> None:
            """Serves the requests that wait."""

        def abort(self) -> None:
            """Closes the connection at once."""

    class ServedApi(Protocol):
        """An API as ApiVersions lists it, and what serves it."""

        key: int
        advertised_oldest: int
        newest: int
        handle: Handle

    class BrokerServices(Protocol):
        """What handlers may use of a broker. Using it any other way is a change of this list first.

        No handler changes logs because of a topic, nor quotas, settings or groups: it gives its request to the
        controller, and publishers (``broker/metadata_publishers``) do what follows. A test holds the handlers to that.
        """

        config: BrokerConfig
        address: tuple[str, int]
        controller: Controller
        fetch_sessions: FetchSessions
        purgatory: Purgatory
        quotas: Quotas
        scheduler: Scheduler

        @property
        def catalog(self) -> CatalogImage: ...

        @property
        def producer_ids(self) -> ProducerIds: ...

        @property
        def runtime(self) -> GroupRuntime:
            """The coordinators of the groups."""

        @property
        def leftovers(self) -> Leftovers: ...

        @property
        def workers(self) -> Workers:
            """Threads and memory for long work."""

        @property
        def apis(self) -> Mapping[int, ServedApi]:
            """The APIs that are served, by key."""

        packed_api_versions: dict[int, tuple[int, bytes]]
        """Packed replies to ApiVersions by version, each with the end of the metadata log that it is of."""

        @property
        def intercepts_requests(self) -> bool:
            """Whether there is a middleware: then each request goes through the router."""

        @property
        def node_id(self) -> int: ...

        @property
        def cluster_id(self) -> str: ...

        @property
        def has_offsets_topic(self) -> bool: ...

        def now_ms(self) -> int:
            """The broker's clock, in ms since the epoch."""

        def new_uuid(self) -> UUID: ...

        def advertised(self, context: Context) -> tuple[str, int]:
            """Host and port that a client is given to connect to."""

        def partition(self, topic: str, index: int) -> Partition | None: ...

        @property
        def partitions(self) -> Mapping[tuple[str, int], Partition]: ...

        @property
        def log_dir(self) -> Path:
            """The directory that the partitions' logs are in."""

        def checkpoint_log_starts(self) -> None:
            """Writes down log starts that the files alone do not tell. Raises OSError."""
