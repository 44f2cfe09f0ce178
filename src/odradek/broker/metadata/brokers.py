"""The brokers that replies name: those of a cluster are in ``image_brokers``, the only one in ``lone_broker``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.settings.listener import Listener
    from odradek.catalog.registrations import PartitionRegistration
    from odradek.catalog.state import Topic

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class ListeningClient(Protocol):
        @property
        def listener(self) -> Listener | None: ...

        @property
        def local_host(self) -> str: ...

    class ClientRequest(Protocol):
        """A request. Its connection belongs to a listener."""

        @property
        def connection(self) -> ListeningClient: ...

    class ClientReplicas(Protocol):
        """The replicas of partitions as clients of one listener can reach them."""

        def is_registered(self, broker_id: int) -> bool: ...

        def leader(self, partition: PartitionRegistration) -> int:
            """Returns the leader, or −1 if it has no endpoint on the listener. As in Kafka, a fence does not count."""

        def online(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
            """Returns the replicas on brokers without a fence that have an endpoint on the listener."""

        def offline(self, partition: PartitionRegistration) -> tuple[int, ...]:
            """Returns the replicas that clients cannot reach, and those in directories that are not online."""

    class Brokers(Protocol):
        """The brokers of the cluster."""

        def reachable(self, request: ClientRequest) -> list[BrokerAddress]:
            """Returns the brokers without a fence that the client can reach."""

        def known(self, request: ClientRequest) -> list[BrokerAddress]:
            """Returns the brokers that have an endpoint on the client's listener, fenced ones, too."""

        def reachable_one(self, broker_id: int, request: ClientRequest) -> BrokerAddress | None:
            """Returns a broker without a fence; None if the client cannot reach it."""

        def controller(self) -> int:
            """Returns the broker that replies name as the controller: any without a fence, because a broker passes
            requests on to the controller (KIP-590). −1 if all are fenced."""

        def replicas_for(self, request: ClientRequest) -> ClientReplicas | None:
            """Returns the replicas as the client can reach them; None if it can reach all of them for ever."""

        def racks(self, topic: Topic) -> tuple[tuple[str, ...], ...]:
            """Returns the racks of each partition's replicas; () if no replica has a rack."""


class BrokerAddress(NamedTuple):
    """A broker with its endpoint on a listener."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool = False
