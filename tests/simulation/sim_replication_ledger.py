"""What readers may have read and producers may rely on, compared with every log after each event.

Every replica is a reader: what is below its high watermark counts as read at once. The committed records of a partition
are what the watermarks of its leaders have passed. A check concerns the partitions that an event has changed:

* two readers see the same record at an offset, and none reads above what a leader has committed;
* each replica in the ISR and each eligible one has all committed records, and as many have them as the minimum says;
* a new leader has all committed records, unless this schedule may lose some (``ReplicationLedger.may_lose``);
* what is acknowledged with acks=all is committed at its offset; of an idempotent producer it is there once;
* epochs rise, along each log and in each registration; one broker leads in an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from sim_replication_controller import ClusterView, PartitionName
from support.replica_log import AbstractLog, ReplicaRecord

from odradek.catalog.registrations import PartitionRegistration
from odradek.replication.follower import PartitionFollower
from odradek.replication.leader import PartitionLeader


class Replica:
    """What one broker has of a partition. The log and the stored watermark are on its disk; the rest is its process.

    ``agreed``: up to there its records are the committed ones. ``checked``: up to there its readers are compared.
    ``is_damaged``: it has lost records in a power cut, and the controller does not know yet that its process has ended.
    """

    __slots__ = (
        "agreed", "broker_id", "checked", "follower", "in_flight", "is_damaged", "leader", "log", "name", "parked",
        "registration", "stored_watermark", "waits",
    )  # fmt: skip

    def __init__(self, broker_id: int, name: PartitionName) -> None:
        self.broker_id, self.name = broker_id, name
        self.log = AbstractLog()
        self.stored_watermark = self.agreed = self.checked = 0
        self.is_damaged = False
        self.end_process()

    def end_process(self) -> None:
        self.registration: PartitionRegistration | None = None
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = None
        self.waits: list[tuple[int, Callable[[bool], None]]] = []
        self.parked: list[Callable[[], None]] = []
        self.in_flight = 0

    @property
    def epoch(self) -> int:
        return -1 if self.registration is None else self.registration.leader_epoch


class PartitionLedger:
    """What is known of one partition. ``loss_epoch``: leaders before it, and their followers, may have other records;
    −1 if nothing may be lost so far."""

    def __init__(self, name: PartitionName, min_isr: int) -> None:
        self.name, self.min_isr = name, min_isr
        self.committed: list[ReplicaRecord] = []
        self.once: dict[int, int] = {}
        """The values of idempotent producers, with their offsets."""
        self.loss_epoch = -1
        self.deleted = 0
        """Where the log of a leader has begun at the latest."""
        self.acknowledged = self.lost = 0
        self.leaders: dict[int, int] = {}


class ReplicationLedger:
    """The ledger of a schedule. ``replicas_of`` returns the replicas of a partition on all disks, by broker."""

    def __init__(
        self,
        replicas_of: Callable[[PartitionName], dict[int, Replica]],
        may_lose: Callable[[PartitionLedger], bool],
        fail: Callable[[str], NoReturn],
    ) -> None:
        self.partitions: dict[PartitionName, PartitionLedger] = {}
        self.checks = 0
        self.idempotent: set[int] = set()
        """The values of idempotent producers."""
        self._replicas_of, self._may_lose, self._fail = replicas_of, may_lose, fail
        self._view = ClusterView(0, {}, {}, {})
        self._changed: set[PartitionName] = set()

    def add(self, name: PartitionName, min_isr: int) -> None:
        self.partitions[name] = PartitionLedger(name, min_isr)

    # --- events of the controller -------------------------------------------------------------------------------

    def on_change(self, before: ClusterView, after: ClusterView) -> None:
        self._view = after
        for name, now in after.partitions.items():
            then = before.partitions.get(name)
            if then is now or then is None:
                continue
            self._changed.add(name)
            self._check_active(name, now, after)
            if now.partition_epoch <= then.partition_epoch or now.leader_epoch < then.leader_epoch:
                self._fail(f"{name}: the epochs go back, from {then} to {now}")
            is_elected = now.leader_epoch > then.leader_epoch and now.leader >= 0
            if is_elected and now.leader not in (*then.isr, *then.elr) and self._may_lose(self.partitions[name]):
                self.partitions[name].loss_epoch = now.leader_epoch
        for broker_id, broker in after.brokers.items():
            former = before.brokers.get(broker_id)
            if former is None or former.epoch != broker.epoch:
                self._forgive(broker_id)

    def _check_active(self, name: PartitionName, now: PartitionRegistration, view: ClusterView) -> None:
        """Only active brokers lead and are in an ISR (KIP-841)."""
        for broker_id in (*now.isr, now.leader):
            if broker_id >= 0 and not view.brokers[broker_id].is_active:
                self._fail(f"{name}: broker {broker_id} is not active, and in {now}")

    def _forgive(self, broker_id: int) -> None:
        """The controller knows that this broker has begun again."""
        for name in self.partitions:
            replica = self._replicas_of(name).get(broker_id)
            if replica is not None:
                replica.is_damaged = False

    # --- events of replicas -------------------------------------------------------------------------------------

    def on_term(self, replica: Replica, registration: PartitionRegistration) -> None:
        """A broker begins to lead. Its log is the partition's now."""
        ledger, epoch = self.partitions[replica.name], registration.leader_epoch
        leader = ledger.leaders.setdefault(epoch, replica.broker_id)
        if leader != replica.broker_id:
            self._fail(f"{replica.name}: brokers {leader} and {replica.broker_id} lead in epoch {epoch}")
        current = self._view.partitions.get(replica.name)
        if current is None:
            return
        if epoch != current.leader_epoch:  # the controller has gone on
            if self._may_lose(ledger):
                ledger.loss_epoch = max(ledger.loss_epoch, current.leader_epoch)
            return
        agreed = self._agree(replica, ledger)
        if agreed < len(ledger.committed):
            if not self._may_lose(ledger):
                self._fail(
                    f"{replica.name}: broker {replica.broker_id} leads in epoch {epoch} with the committed records up "
                    f"to {agreed} of {len(ledger.committed)}"
                )
            self._lose(ledger, agreed, epoch)
        if ledger.loss_epoch == epoch:
            # Of the records below its log start, those of the history that has lost may differ from its followers'.
            below = replica.log.log_start_offset
            ledger.committed[:below] = [ReplicaRecord(-1, -1)] * below
        if ledger.loss_epoch >= 0:  # its watermark may be of a history that had lost to another one
            for offset, record in replica.log.records(len(ledger.committed), replica.log.high_watermark):
                self._fill(ledger, offset)
                ledger.committed.append(record)
                ledger.once[record.value] = offset

    def _lose(self, ledger: PartitionLedger, end: int, epoch: int) -> None:
        ledger.lost += len(ledger.committed) - end
        ledger.loss_epoch = max(ledger.loss_epoch, epoch)
        for record in ledger.committed[end:]:
            ledger.once.pop(record.value, None)
        del ledger.committed[end:]
        for replica in self._replicas_of(ledger.name).values():
            replica.agreed, replica.checked = min(replica.agreed, end), min(replica.checked, end)

    def on_append(self, replica: Replica, start: int) -> None:
        """A log has new batches, from ``start`` on."""
        self._changed.add(replica.name)
        batches = replica.log.batches
        at = replica.log.index_of(start)
        epochs = [batch.epoch for batch in batches[max(at - 1, 0) :]]
        if epochs != sorted(epochs) or epochs[-1] > replica.epoch:
            self._fail(
                f"{replica.name}: the epochs {epochs} of broker {replica.broker_id}, which is in {replica.epoch}"
            )

    def before_cut(self, replica: Replica, end: int) -> None:
        """A log is about to lose its records from ``end`` on, because its leader does not have them."""
        ledger = self.partitions[replica.name]
        if end < replica.log.high_watermark and ledger.loss_epoch < 0:
            self._fail(
                f"{replica.name}: broker {replica.broker_id} truncates to {end}, below its watermark "
                f"{replica.log.high_watermark}"
            )

    def after_cut(self, replica: Replica) -> None:
        log, end = replica.log, replica.log.log_end_offset
        if not log.log_start_offset <= log.high_watermark <= end:
            self._fail(f"{replica.name}: the watermark {log.high_watermark} of broker {replica.broker_id} is outside")
        replica.agreed, replica.checked = min(replica.agreed, end), min(replica.checked, end)
        self._changed.add(replica.name)

    def on_deleted(self, replica: Replica) -> None:
        """A leader has removed its oldest records."""
        ledger = self.partitions[replica.name]
        ledger.deleted = max(ledger.deleted, replica.log.log_start_offset)

    def on_watermark(self, replica: Replica) -> None:
        """A broker lets its readers read up to its high watermark."""
        ledger, log = self.partitions[replica.name], replica.log
        if replica.epoch < ledger.loss_epoch:
            return  # its term ended with a loss that was allowed
        watermark, committed = log.high_watermark, ledger.committed
        if watermark > log.log_end_offset:
            self._fail(f"{replica.name}: the watermark {watermark} of broker {replica.broker_id} is above its log")
        if replica.leader is None and watermark > len(committed):
            self._fail(
                f"{replica.name}: broker {replica.broker_id} shows records up to {watermark}, and "
                f"{len(committed)} are committed"
            )
        for offset, record in log.records(replica.checked, watermark):
            if offset < len(committed):
                # After a loss, a follower may have other records below its leader's log start. It removes them in the
                # same step, after the move of its watermark. A loss while a topic is deleted is not noted.
                is_deleted = offset < ledger.deleted or replica.name not in self._view.partitions
                is_deleted = is_deleted and ledger.loss_epoch >= 0
                if committed[offset].epoch >= 0 and committed[offset] != record and not is_deleted:
                    self._fail(
                        f"{replica.name}: at offset {offset}, a reader of broker {replica.broker_id} sees {record}, "
                        f"another one has seen {committed[offset]}"
                    )
                continue
            self._commit(ledger, offset, record, log.log_start_offset)
        if replica.leader is not None and watermark > replica.checked:
            self._check_copies(ledger, replica)
        replica.checked = max(watermark, replica.checked)
        self._changed.add(replica.name)

    def _check_copies(self, ledger: PartitionLedger, leader: Replica) -> None:
        """What is committed now is on as many disks as the minimum says.

        A leader that does not know the newest change may count a fetch whose sender has lost power since. Then the
        controller counts on this leader alone, until more replicas are in sync.
        """
        current = self._view.partitions.get(ledger.name)
        if current is None or leader.registration is None:
            return
        if leader.registration.partition_epoch != current.partition_epoch:
            return
        end = len(ledger.committed)
        replicas = self._replicas_of(ledger.name).values()
        copies = sum(one.is_damaged or self._agree(one, ledger) >= end for one in replicas)
        if copies < ledger.min_isr:
            self._fail(f"{ledger.name}: {copies} replicas have what is committed, the minimum is {ledger.min_isr}")

    def _commit(self, ledger: PartitionLedger, offset: int, record: ReplicaRecord, log_start: int) -> None:
        if record.value in self.idempotent:
            first = ledger.once.setdefault(record.value, offset)
            if first != offset and first >= log_start:
                self._fail(f"{ledger.name}: a record of an idempotent producer is at {first} and at {offset}")
        self._fill(ledger, offset)
        ledger.committed.append(record)

    @staticmethod
    def _fill(ledger: PartitionLedger, offset: int) -> None:
        """After a loss, the log of a leader may begin above what is still committed. Nothing is between both."""
        while len(ledger.committed) < offset:
            ledger.committed.append(ReplicaRecord(-1, -1))
            ledger.deleted = max(ledger.deleted, offset)

    def on_acknowledged(self, replica: Replica, base: int, values: Iterable[int], acks: int) -> None:
        """A producer gets a successful answer."""
        ledger = self.partitions[replica.name]
        if replica.epoch < ledger.loss_epoch:
            return
        for offset, value in enumerate(values, base):
            ledger.acknowledged += 1
            if acks == -1:
                found = ledger.committed[offset] if offset < len(ledger.committed) else None
            else:
                found = replica.log.record_at(offset)
            if (found is None or found.value != value) and offset >= replica.log.log_start_offset:
                self._fail(
                    f"{replica.name}: broker {replica.broker_id} acknowledges {value} at {offset} with acks={acks}, "
                    f"and there is {found}"
                )

    # --- after each event ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compares the partitions that have changed."""
        changed, self._changed = self._changed, set()
        for name in changed:
            registration = self._view.partitions.get(name)
            if registration is not None:
                self.checks += 1
                self._check(self.partitions[name], registration)

    def _check(self, ledger: PartitionLedger, registration: PartitionRegistration) -> None:
        if ledger.loss_epoch > max(ledger.leaders, default=-1):
            return  # what is lost is not known before the leader begins
        replicas, end = self._replicas_of(ledger.name), len(ledger.committed)
        for broker_id in (*registration.isr, *registration.elr):
            replica = replicas.get(broker_id)
            agreed = 0 if replica is None else self._agree(replica, ledger)
            if agreed < end and (replica is None or not replica.is_damaged):
                self._fail(
                    f"{ledger.name}: broker {broker_id} of ISR {registration.isr} and ELR {registration.elr} has the "
                    f"committed records up to {agreed} of {end}"
                )

    @staticmethod
    def _agree(replica: Replica, ledger: PartitionLedger) -> int:
        """Returns up to where a log has the committed records."""
        log, committed = replica.log, ledger.committed
        agreed = max(replica.agreed, min(log.log_start_offset, ledger.deleted, len(committed)))
        for offset, record in log.records(agreed, len(committed)):
            if committed[offset].epoch >= 0 and committed[offset] != record:
                break
            agreed = offset + 1
        replica.agreed = agreed
        return agreed
