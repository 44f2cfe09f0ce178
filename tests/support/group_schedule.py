"""A schedule of whole brokers whose coordinators move: brokers are killed, lose power, stop and are cut off while
clients commit and fetch offsets, and members of groups of both protocols join, share partitions and leave. All of it
follows from a seed.

A ledger has what was acknowledged and what was read. Checked at each reply: an offset that was acknowledged, or shown
by the coordinator, never goes back; a partition has one owner in a generation, and no commit of a former generation is
accepted. Then the faults end: each group shares all partitions among its members again, and each offset is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from odradek.codecs.consumer_protocol import Subscription, decode_assignment, encode_assignment, encode_subscription
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_NODE, OFFSETS_TOPIC, TopicPartition
from odradek.wire import frames
from odradek.wire.api_keys import (
    CONSUMER_GROUP_HEARTBEAT,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from support.group_nodes import PARTITIONS, TOPIC, GroupNodes, ask, code_of, commit_message, fetch_message, offset_of
from support.moving_schedule import MovingSchedule
from support.world import SimulationFailure

STEPS = 90
SHARED = 3
"""The partitions that the members of a group share."""
SESSION_MS, REBALANCE_MS = 6_000, 4_000
ANSWER_MS = 20_000
"""A client gives a request up after this time, as if its connection were broken."""
_E = ErrorCode
_NONE = _E.none
_MOVES = frozenset({_E.not_coordinator, _E.coordinator_not_available, _E.coordinator_load_in_progress})
_REJOINS = frozenset({_E.rebalance_in_progress, _E.illegal_generation, _E.request_timed_out})
_UNKNOWN = frozenset({_E.unknown_member_id, _E.fenced_member_epoch, _E.stale_member_epoch, _E.fenced_instance_id,
                      _E.unreleased_instance_id, _E.group_max_size_reached})  # fmt: skip


class OffsetLedger:
    """The commits of one partition of one group, by one client: the offsets rise by one with each attempt.

    ``least``: no later read of the coordinator may be below. ``last``: the newest attempt.
    """

    def __init__(self, group: str, index: int) -> None:
        self.group, self.index = group, index
        self.least = self.last = 0

    def show(self, offset: int, least: int, who: str) -> None:
        """The coordinator has shown an offset. ``least``: that of the time of the request."""
        found = max(offset, 0)
        if found < least:
            raise SimulationFailure(f"{who} shows {found} for {self.group}/{self.index}: {least} was there before")
        if found > self.last:
            raise SimulationFailure(
                f"{who} shows {found} for {self.group}/{self.index}: {self.last} is the last commit"
            )
        self.least = max(self.least, found)


class OwnerLedger:
    """The owners of partitions in one group, as replies show them."""

    def __init__(self, group: str) -> None:
        self.group = group
        self.newest = -1
        self._owners: dict[tuple[int, int], str] = {}
        self._holders: dict[int, tuple[str, int]] = {}

    def own(self, member: str, generation: int, partitions: list[int]) -> None:
        """A classic member has its assignment of a generation."""
        for index in partitions:
            owner = self._owners.setdefault((generation, index), member)
            if owner != member:
                raise SimulationFailure(f"{owner} and {member} own {index} in generation {generation} of {self.group}")
        self.newest = max(self.newest, generation)

    def hold(self, member: str, partitions: list[int], now_ms: int, until_ms: int) -> None:
        """A KIP-848 member has its assignment: no other member may use these partitions before ``until_ms``."""
        for index in partitions:
            holder, end_ms = self._holders.get(index, (member, 0))
            if holder != member and now_ms < end_ms:
                raise SimulationFailure(f"{self.group} gives {index} to {member}: {holder} has not given it up")
            self._holders[index] = member, until_ms

    def renew(self, member: str, until_ms: int) -> None:
        self._holders |= {index: (member, until_ms) for index, (holder, _) in self._holders.items() if holder == member}

    def give_up(self, member: str, kept: list[int]) -> None:
        held = self._holders.items()
        self._holders = {index: (who, until) for index, (who, until) in held if who != member or index in kept}


class GroupClient:
    """A client with one request in flight at most. ``act`` sends the next one."""

    def __init__(self, schedule: GroupSchedule, name: str, group: str) -> None:
        self.schedule, self.name, self.group = schedule, name, group
        self.rng, self.world, self.nodes = schedule.rng, schedule.world, schedule.nodes
        self._asked = 0
        self.waits = False

    def act(self) -> None:
        raise NotImplementedError

    def ask(
        self, api_key: int, version: int, message: Mapping[str, Any], take: Callable[[Any, bool], None],
        lose: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Sends a request to the coordinator as the client believes. ``take`` gets the reply, and whether this broker
        was the coordinator from the request to the reply; ``lose`` is called if there is none."""
        number, broker = self._target()
        if broker is None:
            return
        self._asked += 1
        this = self._asked
        self.waits = True
        epoch = self.schedule.epoch(self.group)
        self.schedule.counts[f"requests {api_key}"] += 1

        def end(frame: bytes | None) -> None:
            if this != self._asked or not self.waits:
                return
            self.waits = False
            if frame is None:
                lose()
                return
            _, reply = frames.decode_reply(api_key, version, frame)
            take(reply, leads[-1])

        leads: list[bool] = []

        def arrive(frame: bytes | None) -> None:
            """The client looks at the reply when the broker has sent it: a failure must not end in the broker."""
            leads.append(self.nodes.coordinator(self.group) == number and self.schedule.epoch(self.group) == epoch)
            self.world.at(self.world.now_ms, lambda: end(frame))

        def give_up() -> None:
            if this == self._asked and self.waits:
                wire.hang_up()
                arrive(None)

        wire = ask(broker, api_key, version, message, arrive, lambda: arrive(None))
        self.world.after(ANSWER_MS, give_up)

    def _target(self) -> tuple[int, Any]:
        number = self.nodes.coordinator(self.group)
        if number == NO_NODE or self.rng.random() < 0.1:
            number = self.rng.choice((1, 2, 3))
        broker = self.nodes.brokers[number]
        return number, broker if self.schedule.serves(number) else None


class Committer(GroupClient):
    """A client without a group's protocol: it commits the offsets of two partitions, and fetches them."""

    def __init__(self, schedule: GroupSchedule, name: str, group: str) -> None:
        super().__init__(schedule, name, group)
        self.ledgers = [OffsetLedger(group, index) for index in range(2)]
        self.acknowledged = 0

    def act(self) -> None:
        if self.waits:
            return
        ledger = self.rng.choice(self.ledgers)
        if self.rng.random() < 0.6:
            self.commit(ledger)
        else:
            self.fetch(ledger, stable=self.rng.random() < 0.5)

    def commit(self, ledger: OffsetLedger) -> None:
        ledger.last += 1
        offset = ledger.last

        def take(reply: Any, leads: bool) -> None:
            code = code_of(reply)
            if code is _NONE:
                ledger.least = max(ledger.least, offset)
                self.acknowledged += 1
            elif code not in _MOVES:
                raise SimulationFailure(f"a commit of {self.group} gets {code.name}")

        self.ask(OFFSET_COMMIT, 9, commit_message(self.group, offset, index=ledger.index), take)

    def fetch(self, ledger: OffsetLedger, *, stable: bool) -> None:
        least = ledger.least

        def take(reply: Any, leads: bool) -> None:
            found = offset_of(reply.groups[0])
            if isinstance(found, ErrorCode):
                if found not in _MOVES and found is not _E.unstable_offset_commit:
                    raise SimulationFailure(f"a fetch of {self.group} gets {found.name}")
            elif leads:  # a coordinator that is deposed, and does not know it, may show what was there before
                ledger.show(found, least, self.name)

        self.ask(OFFSET_FETCH, 8, fetch_message(self.group, ledger.index, stable=stable), take)


class GroupMember(GroupClient):
    """A member of a group. ``is_wanted``: it should be in the group; otherwise it leaves or is killed."""

    def __init__(self, schedule: GroupSchedule, name: str, owners: OwnerLedger, committed: list[OffsetLedger]) -> None:
        super().__init__(schedule, name, owners.group)
        self.owners, self.committed = owners, committed
        self.is_wanted = True
        self.member_id = ""
        self.generation = -1
        self.owned: list[int] = []
        self._lives = 0

    @property
    def is_settled(self) -> bool:
        raise NotImplementedError

    @property
    def unique(self) -> str:
        """The owner of partitions: a member of one life."""
        return f"{self.name}.{self._lives}.{self.member_id}"

    def forget(self) -> None:
        self._lives += 1
        self.member_id, self.generation, self.owned = "", -1, []

    def commit(self, instance: str | None = None) -> None:
        """Commits an offset of an owned partition in the member's generation."""
        ledger = self.committed[self.rng.choice(self.owned)]
        ledger.last += 1
        offset, generation, newest = ledger.last, self.generation, self.owners.newest

        def take(reply: Any, leads: bool) -> None:
            code = code_of(reply)
            if code is _NONE:
                if generation < newest:
                    raise SimulationFailure(
                        f"{self.group} accepts a commit of generation {generation}: {newest} was there before"
                    )
                ledger.least = offset
            else:
                self.refused(code, leads)

        message = commit_message(
            self.group, offset, index=ledger.index, member=self.member_id, generation=generation, instance=instance
        )
        self.ask(OFFSET_COMMIT, 9, message, take)

    def refused(self, code: ErrorCode, leads: bool) -> None:
        """A coordinator that was halted, and does not know yet that it is deposed, may not know the group either:
        the next one has created it. A group that exists is never lost by its coordinator."""
        if code is _E.group_id_not_found and not leads:
            self.forget()
        else:
            self._refuse(code, leads)

    def _refuse(self, code: ErrorCode, leads: bool) -> None:
        raise NotImplementedError


class ClassicMember(GroupMember):
    """A member of a classic group, whose leader assigns. ``instance``: of a static member."""

    def __init__(self, *args: Any, instance: str | None = None) -> None:
        super().__init__(*args)
        self._instance = instance
        self._has_to_join = True
        self._is_in_log = False
        """Whether the log has the group with this member id: a coordinator that has loaded it knows the member."""

    @property
    def unique(self) -> str:
        """A static member that comes back has the assignment of its former life."""
        return super().unique if self._instance is None else self._instance

    @property
    def is_settled(self) -> bool:
        return self.is_wanted and self.generation >= 0 and not self._has_to_join

    def act(self) -> None:
        if self.waits:
            return
        if not self.is_wanted:
            if self.member_id and self.rng.random() < 0.5 and self._instance is None:
                self._leave()
            self.forget()
        elif self._has_to_join:
            self._join()
        elif self.owned and self.rng.random() < 0.5:
            self.commit(self._instance)
        else:
            self._beat()

    def forget(self) -> None:
        super().forget()
        self._has_to_join = True
        self._is_in_log = False

    def _refuse(self, code: ErrorCode, leads: bool) -> None:
        if code is _E.fenced_instance_id and self._is_in_log and leads:
            raise SimulationFailure(f"{self.name} in {self.group} is fenced, and the log has its member id")
        if code in _UNKNOWN:
            self.forget()
        elif code in _REJOINS:
            self._has_to_join = True
        elif code not in _MOVES:
            raise SimulationFailure(f"{self.name} in {self.group} gets {code.name}")

    def _join(self) -> None:
        self.owned = []
        message = {
            "group_id": self.group, "session_timeout": SESSION_MS, "rebalance_timeout": REBALANCE_MS,
            "member_id": self.member_id, "group_instance_id": self._instance, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": encode_subscription(Subscription((TOPIC,)))}], "reason": None,
        }  # fmt: skip

        def take(reply: Any, leads: bool) -> None:
            if reply.error_code is _E.member_id_required:
                self.member_id = reply.member_id
            elif reply.error_code is not _NONE:
                self.refused(reply.error_code, leads)
            else:
                self.member_id = reply.member_id
                self._sync(reply)

        self.ask(JOIN_GROUP, 9, message, take)

    def _sync(self, joined: Any) -> None:
        shares: list[dict[str, Any]] = []
        if joined.leader == joined.member_id and not joined.skip_assignment:
            members = sorted(member.member_id for member in joined.members)
            for number, member in enumerate(members):
                share = [TopicPartition(TOPIC, index) for index in range(SHARED) if index % len(members) == number]
                shares.append({"member_id": member, "assignment": encode_assignment(share)})
        generation = joined.generation_id
        message = {
            "group_id": self.group, "generation_id": generation, "member_id": self.member_id,
            "group_instance_id": self._instance, "protocol_type": "consumer", "protocol_name": "range",
            "assignments": shares,
        }  # fmt: skip

        def take(reply: Any, leads: bool) -> None:
            if reply.error_code is not _NONE:
                self.refused(reply.error_code, leads)
                return
            self._is_in_log = True
            data = bytes(reply.assignment)
            self.owned = [one.partition for one in decode_assignment(data)] if data else []
            self.generation, self._has_to_join = generation, False
            self.owners.own(self.unique, generation, self.owned)

        self.ask(SYNC_GROUP, 5, message, take)

    def _beat(self) -> None:
        message = {
            "group_id": self.group, "generation_id": self.generation, "member_id": self.member_id,
            "group_instance_id": self._instance,
        }  # fmt: skip
        self.ask(HEARTBEAT, 4, message, self._take_code)

    def _take_code(self, reply: Any, leads: bool) -> None:
        if reply.error_code is not _NONE:
            self.refused(reply.error_code, leads)

    def _leave(self) -> None:
        row = {"member_id": self.member_id, "group_instance_id": None, "reason": None}
        self.ask(LEAVE_GROUP, 5, {"group_id": self.group, "members": [row]}, lambda reply, leads: None)


class ConsumerMember(GroupMember):
    """A member of a KIP-848 group."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._is_full = True
        self._since_ms = -1
        """The time of the first request since the last good reply: the coordinator may have handled it, and the time
        in which a member has to give partitions up may have begun then."""

    @property
    def is_settled(self) -> bool:
        return self.is_wanted and self.generation > 0

    def forget(self) -> None:
        self.owners.give_up(self.unique, [])
        super().forget()
        self._is_full, self._since_ms = True, -1

    def act(self) -> None:
        if self.waits:
            return
        if not self.is_wanted:
            if self.generation > 0 and self.rng.random() < 0.5:
                self._beat(leaves=True)
            self.forget()
        elif self.generation > 0 and self.owned and self.rng.random() < 0.4:
            self.commit()
        else:
            self._beat()

    def _refuse(self, code: ErrorCode, leads: bool) -> None:
        if code in _UNKNOWN:
            if code is not _E.stale_member_epoch:
                self.forget()
        elif code not in _MOVES:
            raise SimulationFailure(f"{self.name} in {self.group} gets {code.name}")

    def _beat(self, *, leaves: bool = False) -> None:
        if not self.member_id:
            self.member_id = str(UUID(int=self.rng.getrandbits(128), version=4))
            self.generation = 0
        epoch, is_full = -1 if leaves else self.generation, self._is_full or self.generation <= 0
        topic_id = self.schedule.topic_id
        rows = [{"topic_id": topic_id, "partitions": list(self.owned)}] if self.owned else []
        message = {
            "group_id": self.group, "member_id": self.member_id, "member_epoch": epoch, "instance_id": None,
            "rack_id": None, "rebalance_timeout": REBALANCE_MS if is_full else -1,
            "subscribed_topic_names": [TOPIC] if is_full else None, "subscribed_topic_regex": None,
            "server_assignor": None, "topic_partitions": rows,
        }  # fmt: skip
        self.owners.give_up(self.unique, self.owned)
        self._is_full = True  # after a lost reply
        if self._since_ms < 0:
            self._since_ms = self.world.now_ms
        unique = self.unique

        def take(reply: Any, leads: bool) -> None:
            if leaves or unique != self.unique:
                return
            if reply.error_code is not _NONE:
                self.refused(reply.error_code, leads)
                return
            self._is_full = False
            self.generation = reply.member_epoch
            now_ms, until_ms, self._since_ms = self.world.now_ms, self._since_ms + REBALANCE_MS, -1
            if reply.assignment is not None:
                self.owned = [index for row in reply.assignment.topic_partitions for index in row.partitions]
            if leads and now_ms < until_ms:  # a deposed coordinator does not know who has got a partition since
                self.owners.renew(self.unique, until_ms)
                if reply.assignment is not None:
                    self.owners.hold(self.unique, self.owned, now_ms, until_ms)

        self.ask(CONSUMER_GROUP_HEARTBEAT, 1, message, take)


class GroupSchedule(MovingSchedule):
    """``run`` runs it. Raises SimulationFailure."""

    def __init__(self, seed: int) -> None:
        nodes = GroupNodes(seed=seed, topic_partitions=SHARED, count=3 + seed % 2)
        super().__init__(nodes, [(OFFSETS_TOPIC, index) for index in range(PARTITIONS)], STEPS)
        topic = self.nodes.controller.broker.catalog.topic(TOPIC)
        assert topic is not None
        self.topic_id = UUID(bytes=topic.id.bytes)
        self.committers = [Committer(self, f"c{at}", self.nodes.group_at(1 + at, "s")) for at in range(2)]
        classic, consumer = (OwnerLedger(self.nodes.group_at(1 + at, "m")) for at in self.rng.choice(((0, 1), (1, 0))))
        self.classic = [
            ClassicMember(self, f"a{at}", classic, ledgers, instance="one" if at == 2 else None)
            for ledgers in [_ledgers(classic.group)]
            for at in range(3)
        ]
        self.consumers = [
            ConsumerMember(self, f"k{at}", consumer, ledgers)
            for ledgers in [_ledgers(consumer.group)]
            for at in range(2)
        ]
        self.members: list[GroupMember] = [*self.classic, *self.consumers]

    def act(self) -> None:
        """Each client may send a request."""
        for client in self.rng.sample(list(self._clients), len(self._clients)):
            client.act()

    @property
    def _clients(self) -> list[GroupClient]:
        return [*self.committers, *self.members]

    def epoch(self, group: str) -> int:
        """The leader epoch of a group's partition of the offsets topic."""
        return self.nodes.registration(OFFSETS_TOPIC, self.nodes.index_of(group)).leader_epoch

    def change_clients(self) -> None:
        member = self.rng.choice(self.members)
        member.is_wanted = not member.is_wanted

    def wanted_victim(self) -> int:
        """The coordinator of a group."""
        return self.nodes.coordinator(self.rng.choice(self._clients).group)

    # --- the end ------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for member in self.members:
            member.is_wanted = True
        end_ms = self.world.now_ms + 60_000
        while not self._is_settled():
            if self.world.now_ms > end_ms:
                raise SimulationFailure(f"a rebalance does not end: {self._described()}")
            self.act()
            self.world.advance(200)

    def _is_settled(self) -> bool:
        groups: tuple[list[GroupMember], ...] = (list(self.classic), list(self.consumers))
        return all(
            all(member.is_settled for member in members)
            and sorted(index for member in members for index in member.owned) == list(range(SHARED))
            and len({member.generation for member in members}) == 1
            for members in groups
        )

    def _described(self) -> str:
        return ", ".join(f"{one.name} {one.generation} {one.owned}" for one in self.members)

    def check_end(self) -> None:
        self.nodes.run_until(lambda: not any(client.waits for client in self._clients), 60_000)
        for client in self._clients:
            number = self.nodes.run_until_coordinated(client.group)
            ledgers = client.ledgers if isinstance(client, Committer) else client.committed  # type: ignore[attr-defined]
            for ledger in ledgers:
                found = self.nodes.committed(number, client.group, index=ledger.index, stable=True)
                if isinstance(found, ErrorCode):
                    raise SimulationFailure(f"after the faults, {client.group} cannot be read: {found.name}")
                ledger.show(found, ledger.least, f"broker {number} at the end")
        for index in range(PARTITIONS):
            self.nodes.run_until_equal(OFFSETS_TOPIC, index)


def _ledgers(group: str) -> list[OffsetLedger]:
    return [OffsetLedger(group, index) for index in range(SHARED)]
