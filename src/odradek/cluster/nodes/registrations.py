"""The registered nodes of a cluster, as the metadata log has them: Kafka's ClusterControlManager.

Only ``Registrations.apply`` changes the state. ``new_broker`` and ``new_controller`` check a registration and make its
record. What is not in the log, the heartbeats, is in ``cluster/nodes/sessions``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from odradek.catalog.features import METADATA
from odradek.catalog.records import Id16, NodeRecord
from odradek.cluster.records import (
    BrokerRegistrationChangeRecord,
    Endpoint,
    FeatureRange,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from odradek.core.errors import ErrorCode, KafkaError

SECURITY_PROTOCOLS = (0, 1, 2, 3)
MAX_PORT = 65535
FIRST_OWN_DIRECTORY = 100
"""Ids of directories below this number have a meaning of their own: 0 lost, 1 unassigned, 2 migrating."""
LOST = bytes(16)
UNASSIGNED = bytes(15) + b"\x01"
MIGRATING = bytes(15) + b"\x02"


class BrokerRegistration(NamedTuple):
    """A broker after all its records. ``directories`` are in Kafka's order of ids."""

    broker_id: int
    epoch: int
    incarnation_id: Id16
    endpoints: tuple[Endpoint, ...]
    features: tuple[FeatureRange, ...]
    rack: str | None
    is_fenced: bool
    is_shutting_down: bool
    is_migrating: bool
    directories: tuple[Id16, ...]
    cordoned: tuple[Id16, ...] | None

    @property
    def is_active(self) -> bool:
        """Whether the broker may lead partitions and be in their ISR."""
        return not self.is_fenced and not self.is_shutting_down

    @property
    def takes_replicas(self) -> bool:
        """Whether a log directory of the broker may get new replicas."""
        return not self.directories or not set(self.directories) <= set(self.cordoned or ())

    def has_online(self, directory: Id16) -> bool:
        """Returns whether a replica in this log directory is online. A registration without directories is an old one:
        its directories are unknown, and count as online."""
        if directory.bytes in (UNASSIGNED, MIGRATING):
            return True
        return directory.bytes != LOST and (not self.directories or directory in self.directories)

    def record(self) -> RegisterBrokerRecord:
        """Returns the record of a snapshot."""
        return RegisterBrokerRecord(
            self.broker_id, self.incarnation_id, self.epoch, self.endpoints, self.features, self.rack,
            self.is_fenced, self.is_shutting_down, self.directories, self.cordoned, self.is_migrating,
        )  # fmt: skip


class NewBroker(NamedTuple):
    """A request to register a broker. ``previous_epoch``: the broker epoch of the last clean stop; −1 without one, None
    in a version of the request that does not say it."""

    broker_id: int
    cluster_id: str
    incarnation_id: Id16
    endpoints: tuple[Endpoint, ...]
    features: tuple[FeatureRange, ...]
    rack: str | None
    directories: tuple[Id16, ...]
    previous_epoch: int | None = None
    is_migrating: bool = False


class NewController(NamedTuple):
    """A request to register a controller."""

    controller_id: int
    incarnation_id: Id16
    endpoints: tuple[Endpoint, ...]
    features: tuple[FeatureRange, ...]
    is_migration_ready: bool = False


class Registrations:
    """The brokers and controllers by id. ``directory_owners``: log directory → broker.

    ``registered_at``: broker → the offset of its newest RegisterBrokerRecord. The broker may leave the fence when it
    has this record. A snapshot does not say the offset. Then it is the broker epoch, which is not above it.
    """

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerRegistration] = {}
        self.controllers: dict[int, RegisterControllerRecord] = {}
        self.directory_owners: dict[Id16, int] = {}
        self.registered_at: dict[int, int] = {}

    # --- the present state --------------------------------------------------------------------------------------

    def is_active(self, broker_id: int) -> bool:
        """Returns whether the broker is registered, not fenced and not in a controlled shutdown."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def has_online(self, broker_id: int, directory: Id16 | None) -> bool:
        """Returns whether a replica of this broker in this log directory is online. An unknown directory is."""
        broker = self.brokers.get(broker_id)
        return broker is not None and (directory is None or broker.has_online(directory))

    def check_epoch(self, broker_id: int, epoch: int) -> BrokerRegistration:
        """Returns the registration with this broker epoch. Raises KafkaError (STALE_BROKER_EPOCH)."""
        broker = self.brokers.get(broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.stale_broker_epoch, f"No broker registration found for broker id {broker_id}")
        if broker.epoch != epoch:
            text = f"Expected broker epoch {broker.epoch}, but got broker epoch {epoch}"
            raise KafkaError(ErrorCode.stale_broker_epoch, text)
        return broker

    def default_directory(self, broker_id: int) -> bytes:
        """Returns the id of the log directory that a new replica on this broker gets, in 16 bytes."""
        broker = self.brokers.get(broker_id)
        if broker is None or len(broker.directories) > 1:
            return UNASSIGNED
        return broker.directories[0].bytes if broker.directories else MIGRATING

    # --- requests -----------------------------------------------------------------------------------------------

    def new_broker(
        self, request: NewBroker, cluster_id: str, levels: Mapping[str, int], next_offset: int, *, has_session: bool
    ) -> RegisterBrokerRecord:
        """Checks a registration and returns its record.

        ``levels``: the present levels of all features. ``next_offset``: the offset of the next record, which becomes
        the broker epoch of a new incarnation. ``has_session``: the registered incarnation still sends heartbeats.

        Raises KafkaError: INCONSISTENT_CLUSTER_ID, DUPLICATE_BROKER_REGISTRATION, BROKER_ID_NOT_REGISTERED (of a broker
        from ZooKeeper), INVALID_REGISTRATION, UNSUPPORTED_VERSION (of a feature), UNKNOWN_SERVER_ERROR (of an
        endpoint).
        """
        if request.cluster_id != cluster_id:
            text = f"Expected cluster ID {cluster_id}, but got cluster ID {request.cluster_id}"
            raise KafkaError(ErrorCode.inconsistent_cluster_id, text)
        existing = self.brokers.get(request.broker_id)
        same = existing is not None and existing.incarnation_id == request.incarnation_id
        if has_session and existing is not None and not same:
            raise KafkaError(
                ErrorCode.duplicate_broker_registration,
                f"Another broker is registered with the id {request.broker_id}. If it is the same broker before a "
                "restart, its session ends soon, and the registration succeeds then.",
            )
        if request.is_migrating:
            text = "The controller does not register brokers from ZooKeeper."
            raise KafkaError(ErrorCode.broker_id_not_registered, text)
        self._check_directories(request)
        _check_endpoints(request.endpoints)
        _check_features(request.features, levels)
        record = RegisterBrokerRecord(
            request.broker_id,
            request.incarnation_id,
            next_offset,
            _last_of_each_name(request.endpoints),
            request.features,
            request.rack,
            directories=request.directories,
        )
        if existing is None or not same:
            return record
        return RegisterBrokerRecord(
            record.broker_id, record.incarnation_id, existing.epoch, record.endpoints, record.features, record.rack,
            existing.is_fenced, existing.is_shutting_down, record.directories,
        )  # fmt: skip

    def _check_directories(self, request: NewBroker) -> None:
        """Raises KafkaError (INVALID_REGISTRATION) for log directories that the broker cannot have."""
        directories, fault = request.directories, ""
        if not directories:
            fault = "No directories specified in request"
        elif any(is_reserved(directory) for directory in directories):
            fault = "Reserved directory ID in request"
        elif len(set(directories)) != len(directories):
            fault = "Duplicate directory ID in request"
        else:
            for directory in directories:
                owner = self.directory_owners.get(directory, request.broker_id)
                if owner != request.broker_id:
                    fault = f"Broker {owner} is already registered with directory {directory}"
                    break
        if fault:
            raise KafkaError(ErrorCode.invalid_registration, fault)

    def unregistered(self, broker_id: int) -> UnregisterBrokerRecord:
        """Returns the record that removes a broker. Raises KafkaError (BROKER_ID_NOT_REGISTERED)."""
        broker = self.brokers.get(broker_id)
        if broker is None:
            raise KafkaError(ErrorCode.broker_id_not_registered, f"Broker ID {broker_id} is not currently registered")
        return UnregisterBrokerRecord(broker_id, broker.epoch)

    @staticmethod
    def new_controller(request: NewController) -> RegisterControllerRecord:
        """Checks the registration of a controller and returns its record. Raises KafkaError (UNKNOWN_SERVER_ERROR)."""
        _check_endpoints(request.endpoints)
        return RegisterControllerRecord(
            request.controller_id, request.incarnation_id, _last_of_each_name(request.endpoints), request.features
        )

    # --- the log ------------------------------------------------------------------------------------------------

    def apply(self, offset: int, record: NodeRecord) -> None:
        """Applies a record of the log. Raises ValueError if it contradicts the records before it."""
        match record:
            case RegisterBrokerRecord():
                self._apply_broker(offset, record)
            case UnregisterBrokerRecord(broker_id, epoch):
                broker = self._known(offset, broker_id, epoch)
                self._move_directories(offset, broker_id, broker.directories, ())
                del self.brokers[broker_id], self.registered_at[broker_id]
            case FenceBrokerRecord(broker_id, epoch):
                self.brokers[broker_id] = self._known(offset, broker_id, epoch)._replace(is_fenced=True)
            case UnfenceBrokerRecord(broker_id, epoch):
                self.brokers[broker_id] = self._known(offset, broker_id, epoch)._replace(is_fenced=False)
            case BrokerRegistrationChangeRecord(broker_id, epoch):
                self._apply_change(self._known(offset, broker_id, epoch), offset, record)
            case RegisterControllerRecord(controller_id):
                self.controllers[controller_id] = record

    def _apply_broker(self, offset: int, record: RegisterBrokerRecord) -> None:
        existing = self.brokers.get(record.broker_id)
        directories = _sorted(record.directories)
        self._move_directories(offset, record.broker_id, existing.directories if existing else (), directories)
        self.brokers[record.broker_id] = BrokerRegistration(
            record.broker_id, record.broker_epoch, record.incarnation_id, record.endpoints, record.features,
            record.rack, record.is_fenced, record.is_shutting_down, record.is_migrating, directories, record.cordoned,
        )  # fmt: skip
        self.registered_at[record.broker_id] = max(offset, record.broker_epoch)

    def _apply_change(self, broker: BrokerRegistration, offset: int, record: BrokerRegistrationChangeRecord) -> None:
        if record.is_fenced is not None:
            broker = broker._replace(is_fenced=record.is_fenced)
        if record.begins_shutdown:
            broker = broker._replace(is_shutting_down=True)
        if record.directories:
            directories = _sorted(record.directories)
            self._move_directories(offset, broker.broker_id, broker.directories, directories)
            broker = broker._replace(directories=directories)
        if record.cordoned is not None:
            broker = broker._replace(cordoned=record.cordoned)
        self.brokers[broker.broker_id] = broker

    def _known(self, offset: int, broker_id: int, epoch: int) -> BrokerRegistration:
        broker = self.brokers.get(broker_id)
        if broker is None:
            raise ValueError(
                f"the metadata record at offset {offset} names broker {broker_id}, which is not registered"
            )
        if broker.epoch != epoch:
            raise ValueError(
                f"the metadata record at offset {offset} names broker {broker_id} with epoch {epoch}, but it is "
                f"registered with epoch {broker.epoch}"
            )
        return broker

    def _move_directories(self, offset: int, broker_id: int, before: Collection[Id16], after: Collection[Id16]) -> None:
        for directory in after:
            if self.directory_owners.get(directory, broker_id) != broker_id:
                raise ValueError(
                    f"the metadata record at offset {offset} gives the directory {directory} of broker "
                    f"{self.directory_owners[directory]} to broker {broker_id}"
                )
        for directory in before:
            del self.directory_owners[directory]
        for directory in after:
            self.directory_owners[directory] = broker_id


def offline_directories(broker: BrokerRegistration, offline: Collection[Id16]) -> tuple[Id16, ...]:
    """Returns the directories of a broker that it now reports as offline."""
    return tuple(directory for directory in broker.directories if directory in offline)


def is_reserved(directory: Id16) -> bool:
    """Returns whether no log directory can have this id: a number below 100, whose lower half has a sign in Kafka."""
    high, low = _halves(directory)
    return high == 0 and low < FIRST_OWN_DIRECTORY


def _sorted(directories: Iterable[Id16]) -> tuple[Id16, ...]:
    """Returns ids in the order of Kafka's Id16."""
    return tuple(sorted(directories, key=_halves))


def _halves(directory: Id16) -> tuple[int, int]:
    """Returns an id as two numbers with signs."""
    packed = directory.bytes
    return int.from_bytes(packed[:8], "big", signed=True), int.from_bytes(packed[8:], "big", signed=True)


def _check_endpoints(endpoints: Iterable[Endpoint]) -> None:
    """Raises KafkaError (UNKNOWN_SERVER_ERROR, as in Kafka) for an endpoint that no record can hold."""
    for one in endpoints:
        fault = ""
        if one.security_protocol not in SECURITY_PROTOCOLS:
            fault = f"the unknown security protocol {one.security_protocol}"
        elif not 0 < one.port <= MAX_PORT:
            fault = f"the port {one.port}"
        elif not one.host:
            fault = "no host"
        if fault:
            raise KafkaError(ErrorCode.unknown_server_error, f"The listener {one.name!r} has {fault}.")


def _last_of_each_name(endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    return tuple({one.name: one for one in endpoints}.values())


def _check_features(features: Collection[FeatureRange], levels: Mapping[str, int]) -> None:
    """Raises KafkaError: UNSUPPORTED_VERSION for a present level that the broker does not support, INVALID_REGISTRATION
    without a range for ``metadata.version``."""
    for one in features:
        _check_range(one, levels.get(one.name, 0))
    named = {one.name for one in features}
    if METADATA not in named:
        text = f"Request features do not contain '{METADATA}'"
        raise KafkaError(ErrorCode.invalid_registration, text)
    for name, level in levels.items():
        if level and name not in named:
            _check_range(FeatureRange(name, 0, 0), level)


def _check_range(supported: FeatureRange, level: int) -> None:
    name, lowest, highest = supported
    if not lowest <= level <= highest:
        raise KafkaError(
            ErrorCode.unsupported_version,
            f"Unable to register because the broker does not support finalized version {level} of {name}. The broker "
            f"wants a version between {lowest} and {highest}, inclusive.",
        )
