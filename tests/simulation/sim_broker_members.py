"""Members of groups of the simulated broker: classic ones, which the leader assigns, and those of KIP-848.

A partition has one owner in a generation. A KIP-848 member owns what the broker has assigned to it, until it reports
that it has given it up, leaves, or its session is over. A commit of a former generation is refused.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sim_broker import BrokerStage, Gone
from sim_broker_clients import SimulatedClient, check_offset

from odradek.codecs.consumer_protocol import Subscription, decode_assignment, encode_assignment, encode_subscription
from odradek.core.ids import TopicPartition
from odradek.wire.api_keys import (
    CONSUMER_GROUP_HEARTBEAT,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)

BEAT_MS = 1_500
SESSION_MS = 10_000
REBALANCE_MS = 5_000
"""A member that does not give partitions up in this time loses them. So nothing is promised to a silent member."""
PARTITIONS = 2
MEMBER_ID_REQUIRED, REBALANCE_IN_PROGRESS = 79, 27
COORDINATOR_ERRORS = frozenset({14, 15, 16, 56, 7})


class GroupLedger:
    """What the replies to the members of one group say."""

    def __init__(self, stage: BrokerStage, group: str) -> None:
        self.group = group
        self._stage = stage
        self._owners: dict[tuple[int, int, int], str] = {}
        self._holders: dict[int, tuple[str, int]] = {}
        self._newest = (-1, -1)
        self.possible: list[set[int]] = [{-1} for _ in range(PARTITIONS)]
        self.in_flight: list[set[int]] = [set() for _ in range(PARTITIONS)]
        self.committed = 0

    @property
    def era(self) -> int:
        """The number of power cuts that have taken records: generations begin again after them."""
        return 0 if self._stage.is_synced else self._stage.counts["power cuts"]

    def own(self, member: str, generation: int, partitions: list[int]) -> None:
        """A classic member has got its assignment in a generation."""
        for index in partitions:
            owner = self._owners.setdefault((self.era, generation, index), member)
            if owner != member:
                raise self._stage.fail(f"{owner} and {member} own {index} in generation {generation} of {self.group}")
        self._newest = max(self._newest, (self.era, generation))

    def check_commit(self, era: int, generation: int, newest: tuple[int, int]) -> None:
        """Checks an accepted commit. ``newest``: the newest generation when it was sent."""
        if era == self.era and (era, generation) < newest:
            raise self._stage.fail(f"{self.group} accepts a commit of generation {generation} after {newest[1]}")

    @property
    def newest(self) -> tuple[int, int]:
        return self._newest

    def hold(self, member: str, partitions: list[int]) -> None:
        """A KIP-848 member has got its assignment."""
        now_ms = self._stage.world.now_ms
        for index in partitions:
            holder, until_ms = self._holders.get(index, (member, 0))
            if holder != member and now_ms < until_ms and self._stage.lost_power_ms < 0:
                raise self._stage.fail(f"{self.group} gives {index} to {member}, but {holder} has not given it up")
            self._holders[index] = member, now_ms + REBALANCE_MS

    def renew(self, member: str) -> None:
        """A heartbeat of a member has succeeded."""
        until_ms = self._stage.world.now_ms + REBALANCE_MS
        self._holders |= {index: (member, until_ms) for index, (holder, _) in self._holders.items() if holder == member}

    def give_up(self, member: str, kept: list[int]) -> None:
        """A member is about to report what it still owns."""
        self._holders = {
            index: (holder, until_ms)
            for index, (holder, until_ms) in self._holders.items()
            if holder != member or index in kept
        }


class SimulatedMember(SimulatedClient):
    """A member of either protocol. It runs from ``live`` to ``end``."""

    def __init__(self, stage: BrokerStage, name: str, seed: int, ledger: GroupLedger, *, is_classic: bool) -> None:
        super().__init__(stage, name, seed)
        self._ledger = ledger
        self._is_classic = is_classic
        self._is_ending = False
        self._lives = 0
        self._member_id = ""
        self._epoch = 0
        self._is_full = True
        self._owned: list[int] = []

    async def live(self) -> None:
        """Joins the group, sends heartbeats and commits, until ``end``."""
        self._is_ending = False
        self._lives += 1
        self._forget()
        while not self._is_ending:
            try:
                if self._owned and self.chance.random() < 0.4:  # it may not know yet that there is a new generation
                    await self._commit(self.chance.choice(self._owned))
                await self._beat()
                if self.chance.random() < 0.2:
                    await self._read(self.chance.randrange(PARTITIONS))
            except Gone:
                pass
            await self.stage.sleep(BEAT_MS)
        if self.chance.random() < 0.5:  # otherwise it is killed
            await self._leave()

    def end(self) -> None:
        self._is_ending = True

    def _forget(self) -> None:
        self._ledger.give_up(self._unique, [])
        self._member_id = "" if self._is_classic else str(UUID(int=self.chance.getrandbits(128), version=4))
        self._epoch, self._owned = 0, []

    @property
    def _unique(self) -> str:
        return f"{self.name}-{self._lives}-{self._member_id}"

    async def _beat(self) -> None:
        await self.find("coordinator", 0, self._ledger.group)
        if not self._is_classic:
            await self._beat_of_consumer()
        elif not self._epoch:
            await self._join()
        else:
            message = {
                "group_id": self._ledger.group, "generation_id": self._epoch, "member_id": self._member_id,
                "group_instance_id": None,
            }  # fmt: skip
            reply = await self.ask(HEARTBEAT, 4, message)
            if reply.error_code == REBALANCE_IN_PROGRESS:
                await self._join()
            elif reply.error_code and reply.error_code not in COORDINATOR_ERRORS:
                self._forget()

    async def _join(self) -> None:
        metadata = encode_subscription(Subscription(("kept",)))
        message = {
            "group_id": self._ledger.group, "session_timeout": SESSION_MS, "rebalance_timeout": 3_000,
            "member_id": self._member_id, "group_instance_id": None, "protocol_type": "consumer",
            "protocols": ({"name": "range", "metadata": metadata},),
        }  # fmt: skip
        self._epoch, self._owned = 0, []
        joined = await self.ask(JOIN_GROUP, 7, message)
        if joined.error_code == MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
            joined = await self.ask(JOIN_GROUP, 7, message | {"member_id": self._member_id})
        if joined.error_code:
            if joined.error_code not in COORDINATOR_ERRORS:
                self._forget()
            return
        self._member_id = joined.member_id
        assignments: list[dict[str, Any]] = []
        if joined.leader == joined.member_id:
            members = sorted(member.member_id for member in joined.members)
            for number, member in enumerate(members):
                owned = [TopicPartition("kept", index) for index in range(PARTITIONS) if index % len(members) == number]
                assignments.append({"member_id": member, "assignment": encode_assignment(owned)})
        message = {
            "group_id": self._ledger.group, "generation_id": joined.generation_id, "member_id": self._member_id,
            "group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range",
            "assignments": tuple(assignments),
        }  # fmt: skip
        synced = await self.ask(SYNC_GROUP, 5, message)
        if synced.error_code:
            return
        self._epoch = joined.generation_id
        self._owned = [one.partition for one in decode_assignment(bytes(synced.assignment))]
        self.note("owns {} in generation {}", self._owned, self._epoch)
        self._ledger.own(self._unique, self._epoch, self._owned)

    async def _beat_of_consumer(self) -> None:
        topic_id = self.topic_id("kept")
        is_full, self._is_full = self._is_full or not self._epoch, True  # after a lost reply, too
        owned = ({"topic_id": topic_id, "partitions": tuple(self._owned)},) if self._owned else ()
        message = {
            "group_id": self._ledger.group, "member_id": self._member_id, "member_epoch": self._epoch,
            "instance_id": None, "rack_id": None, "rebalance_timeout": REBALANCE_MS if is_full else -1,
            "subscribed_topic_names": ("kept",) if is_full else None, "subscribed_topic_regex": None,
            "server_assignor": None, "topic_partitions": owned,
        }  # fmt: skip
        self._ledger.give_up(self._unique, self._owned)
        reply = await self.ask(CONSUMER_GROUP_HEARTBEAT, 1, message)
        self._is_full = bool(reply.error_code)
        if reply.error_code:
            if reply.error_code not in COORDINATOR_ERRORS:
                self._forget()
            return
        self._epoch = reply.member_epoch
        self._ledger.renew(self._unique)
        if reply.assignment is not None:
            self._owned = [index for row in reply.assignment.topic_partitions for index in row.partitions]
            self.note("owns {} in epoch {}", self._owned, self._epoch)
            self._ledger.hold(self._unique, self._owned)

    async def _commit(self, index: int) -> None:
        ledger = self._ledger
        ledger.committed += 1
        offset, epoch, era, newest = ledger.committed, self._epoch, ledger.era, ledger.newest
        ledger.in_flight[index].add(offset)
        part = {
            "partition_index": index, "committed_offset": offset, "committed_leader_epoch": -1,
            "committed_metadata": "",
        }  # fmt: skip
        reply = await self.ask(OFFSET_COMMIT, 9, {
            "group_id": ledger.group, "generation_id_or_member_epoch": epoch, "member_id": self._member_id,
            "group_instance_id": None, "topics": ({"name": "kept", "partitions": (part,)},),
        })  # fmt: skip
        code = reply.topics[0].partitions[0].error_code
        if code:
            if code not in COORDINATOR_ERRORS:
                ledger.in_flight[index].discard(offset)
            return
        ledger.in_flight[index].discard(offset)
        if era == ledger.era:
            ledger.possible[index] = {offset}
        if self._is_classic:
            ledger.check_commit(era, epoch, newest)

    async def _read(self, index: int) -> None:
        ledger = self._ledger
        before = ledger.possible[index] | ledger.in_flight[index]
        reply = await self.ask(OFFSET_FETCH, 7, {
            "group_id": ledger.group, "topics": ({"name": "kept", "partition_indexes": (index,)},),
            "require_stable": True,
        })  # fmt: skip
        if reply.error_code or reply.topics[0].partitions[0].error_code:
            return
        found = int(reply.topics[0].partitions[0].committed_offset)
        check_offset(self.stage, ledger.group, before | ledger.possible[index] | ledger.in_flight[index], found)

    async def _leave(self) -> None:
        self._ledger.give_up(self._unique, [])
        try:
            if self._is_classic:
                member = {"member_id": self._member_id, "group_instance_id": None}
                await self.ask(LEAVE_GROUP, 4, {"group_id": self._ledger.group, "members": (member,)})
            else:
                await self.ask(CONSUMER_GROUP_HEARTBEAT, 1, {
                    "group_id": self._ledger.group, "member_id": self._member_id, "member_epoch": -1,
                    "instance_id": None, "rack_id": None, "rebalance_timeout": -1, "subscribed_topic_names": None,
                    "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": None,
                })  # fmt: skip
        except Gone:
            return
