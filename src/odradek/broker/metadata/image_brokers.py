"""The brokers of a cluster that replies name, and the replicas of partitions as a client can reach them: Kafka's
MetadataCache. A client reaches the brokers that have an endpoint on its own listener.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.broker.metadata.brokers import BrokerAddress
from odradek.core.ids import NO_NODE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from odradek.broker.metadata.brokers import ClientRequest
    from odradek.broker.metadata.catalog_view import CatalogView, RegisteredBroker
    from odradek.broker.settings.listener import Listener
    from odradek.catalog.records import Id16
    from odradek.catalog.registrations import PartitionRegistration
    from odradek.catalog.state import Topic


class ImageBrokers:
    """The brokers of the image: those that the applied metadata records have registered.

    ``listeners``: those of this node; a request without a listener belongs to the first. ``new_uuid``: the
    chance by which ``controller`` chooses.
    """

    def __init__(self, image: CatalogView, listeners: tuple[Listener, ...], new_uuid: Callable[[], UUID]) -> None:
        self._image = image
        self._listeners = listeners
        self._new_uuid = new_uuid

    def reachable(self, request: ClientRequest) -> list[BrokerAddress]:
        return [broker for broker in self.known(request) if not broker.is_fenced]

    def known(self, request: ClientRequest) -> list[BrokerAddress]:
        listener = self._listener(request)
        each = (_address(broker, listener) for broker in self._image.registered_brokers().values())
        return [address for address in each if address is not None]

    def reachable_one(self, broker_id: int, request: ClientRequest) -> BrokerAddress | None:
        broker = self._image.registered_brokers().get(broker_id)
        return None if broker is None or broker.is_fenced else _address(broker, self._listener(request))

    def controller(self) -> int:
        ids = [broker.broker_id for broker in self._image.registered_brokers().values() if not broker.is_fenced]
        return ids[self._new_uuid().int % len(ids)] if ids else NO_NODE

    def replicas_for(self, request: ClientRequest) -> ReplicaView:
        return ReplicaView(self._image.registered_brokers(), self._listener(request))

    def racks(self, topic: Topic) -> tuple[tuple[str, ...], ...]:
        racks = {broker.broker_id: broker.rack for broker in self._image.registered_brokers().values()}
        if not any(rack is not None for rack in racks.values()):
            return ()
        return tuple(
            tuple(rack for replica in partition.replicas if (rack := racks.get(replica)) is not None)
            for partition in topic.partitions
        )

    def _listener(self, request: ClientRequest) -> str:
        return (request.connection.listener or self._listeners[0]).name


class ReplicaView:
    """``brokers.ClientReplicas`` of the image."""

    def __init__(self, brokers: Mapping[int, RegisteredBroker], listener: str) -> None:
        self._brokers = brokers
        self._listener = listener

    def is_registered(self, broker_id: int) -> bool:
        return broker_id in self._brokers

    def leader(self, partition: PartitionRegistration) -> int:
        broker = self._brokers.get(partition.leader)
        return NO_NODE if broker is None or _address(broker, self._listener) is None else partition.leader

    def online(self, replicas: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(filter(self._is_online, replicas))

    def offline(self, partition: PartitionRegistration) -> tuple[int, ...]:
        directories = partition.directories or (None,) * len(partition.replicas)
        return tuple(
            replica
            for replica, directory in zip(partition.replicas, directories, strict=True)
            if not (self._is_online(replica) and self._has_directory(replica, directory))
        )

    def _is_online(self, broker_id: int) -> bool:
        broker = self._brokers.get(broker_id)
        return broker is not None and not broker.is_fenced and _address(broker, self._listener) is not None

    def _has_directory(self, broker_id: int, directory: Id16 | None) -> bool:
        return directory is None or self._brokers[broker_id].has_online(directory)


def _address(broker: RegisteredBroker, listener: str) -> BrokerAddress | None:
    for endpoint in broker.endpoints:
        if endpoint.name == listener:
            return BrokerAddress(broker.broker_id, endpoint.host, endpoint.port, broker.rack, broker.is_fenced)
    return None
