"""The requests of administrators: DescribeGroups, ListGroups and DeleteGroups. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from odradek.core.effects import Result, ResultSteps, most_bytes
from odradek.core.errors import ErrorCode
from odradek.core.pace import Pace
from odradek.groups.classic.group import CONSUMER, ClassicGroup, State
from odradek.groups.kip848.group import Kip848Group
from odradek.groups.kip848.protocol import Kip848Protocol
from odradek.groups.messages import (
    DeleteGroups,
    DescribedGroup,
    DescribedMember,
    DescribeGroup,
    ListedGroup,
    ListGroups,
    ListGroupsReply,
)
from odradek.groups.offsets.committed_offsets import Offsets
from odradek.groups.offsets.tombstones import Tombstones

CLASSIC = "classic"


class Administration:
    """Reads the groups of a shard, and generates the records of deletions."""

    def __init__(
        self,
        groups: Mapping[str, ClassicGroup],
        consumer_groups: Mapping[str, Kip848Group],
        offsets: Offsets,
        consumers: Kip848Protocol,
    ) -> None:
        self._groups = groups
        self._consumer_groups = consumer_groups
        self._offsets = offsets
        self._consumers = consumers

    def handle_describe(self, now_ms: int, request: DescribeGroup) -> ResultSteps[DescribedGroup]:
        group = self._groups.get(request.group_id)
        if group is None:
            why = "is not a classic group" if request.group_id in self._consumer_groups else "not found"
            return Result(
                DescribedGroup(
                    request.group_id,
                    ErrorCode.group_id_not_found,
                    f"Group {request.group_id} {why}.",
                    state=State.DEAD.value,
                )
            )
        stable = group.state is State.STABLE
        pace = Pace()
        members = []
        for member in group.members.values():
            described = DescribedMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol) if stable else b"",
                member.assignment,
            )
            members.append(described)
            if pace.spend(member.scan_work):
                yield None
        return Result(
            DescribedGroup(
                group.group_id,
                state=group.state.value,
                protocol_type=group.protocol_type or "",
                protocol_name=(group.protocol or "") if stable else "",
                members=members,
            )
        )

    def handle_list(self, now_ms: int, request: ListGroups) -> Result[ListGroupsReply]:
        classic = self._groups.values() if not request.types or CLASSIC in request.types else ()
        consumer = self._consumer_groups.values() if not request.types or CONSUMER in request.types else ()
        return Result(ListGroupsReply(groups=_listed(list(classic), list(consumer), request.states)))

    def list_without(self, request: ListGroups, simple: Collection[str]) -> ListGroupsReply:
        """Returns the list without these groups, if they have neither members nor a record."""
        reply = self.handle_list(0, request).reply
        assert reply is not None
        hidden = {
            name
            for name in simple
            if (group := self._groups.get(name)) is not None and group.persisted is None and not group.members
        }
        return ListGroupsReply(groups=(row for row in reply.groups if row.group_id not in hidden))

    def handle_delete(self, now_ms: int, request: DeleteGroups) -> ResultSteps[list[tuple[str, ErrorCode]]]:
        out: Result[list[tuple[str, ErrorCode]]] = Result()
        offsets, pace = Tombstones(), Pace()
        rows = []
        limit = self._offsets.batch_bytes()
        for group_id in request.group_ids:
            if pace.spend():
                yield None
            error = self._check_deletion(group_id)
            rows.append((group_id, error))
            if error is not ErrorCode.none:
                continue
            for topic, partitions in self._offsets.partitions(group_id):
                offsets.add_offsets(group_id, topic, partitions)
                if offsets.most_bytes > limit:  # either all tombstones are written or none
                    return Result(request.error_reply(ErrorCode.unknown_server_error))
                if pace.spend(1 + len(partitions) // 2):
                    yield None
            group = self._consumer_groups.get(group_id)
            if group is None:
                offsets.add_group(group_id)
            else:
                self._consumers.delete(group, out)
        if sum(map(most_bytes, out.records)) + offsets.most_bytes > limit:
            return Result(request.error_reply(ErrorCode.unknown_server_error))
        out.reply = rows
        if offsets.count:
            out.block = offsets
        return out

    def _check_deletion(self, group_id: str) -> ErrorCode:
        group = self._groups.get(group_id)
        if group is not None:
            return ErrorCode.none if group.state is State.EMPTY else ErrorCode.non_empty_group
        consumer_group = self._consumer_groups.get(group_id)
        if consumer_group is None:
            return ErrorCode.group_id_not_found
        return ErrorCode.none if consumer_group.is_empty else ErrorCode.non_empty_group


def _listed(
    classic: Iterable[ClassicGroup], consumer: Iterable[Kip848Group], states: Collection[str]
) -> Iterator[ListedGroup]:
    """Yields one group at a time, because there can be hundreds of thousands."""
    for group in classic:
        if not states or group.state.value.lower() in states:
            yield ListedGroup(group.group_id, group.protocol_type or "", group.state.value, CLASSIC)
    for consumer_group in consumer:
        if not states or consumer_group.state.value.lower() in states:
            yield ListedGroup(consumer_group.group_id, CONSUMER, consumer_group.state.value, CONSUMER)
