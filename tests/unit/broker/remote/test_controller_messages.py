"""The requests of brokers to their controller, and what they take from its replies."""

from __future__ import annotations

from uuid import UUID

from odradek.broker.remote.controller_messages import isr_changes
from odradek.cluster.partitions.isr_proposals import IsrProposal, IsrState
from odradek.core.errors import ErrorCode
from odradek.core.ids import FetchingReplica
from odradek.wire import frames, schemas
from odradek.wire.schemas import Kind

ONE, TWO = UUID(int=1 << 64), UUID(int=2 << 64)


def part(index: int, code: int = 0, leader: int = 0, isr: tuple[int, ...] = ()) -> dict[str, object]:
    return {"partition_index": index, "error_code": code, "leader_id": leader, "leader_epoch": 3, "isr": isr,
            "leader_recovery_state": 1, "partition_epoch": 8}  # fmt: skip


def test_a_request_for_isrs_has_each_topic_once_and_reads_the_state_of_each_partition() -> None:
    members = (FetchingReplica(1, 20), FetchingReplica(2))
    request = isr_changes(
        1,
        20,
        [IsrProposal(ONE, 0, 3, 7, members), IsrProposal(TWO, 1, 3, 7, members[:1], 1), IsrProposal(ONE, 2, 5, 9, ())],
    )
    frame = request.frame(4, "b")[4:]
    head = frames.read_request_head(frame)
    message, _ = schemas.decode(56, 3, Kind.REQUEST, frame, head.body)
    assert (head.api_key, head.version, message.broker_id, message.broker_epoch) == (56, 3, 1, 20)
    assert [(topic.topic_id, [one.partition_index for one in topic.partitions]) for topic in message.topics] == [
        (ONE, [0, 2]), (TWO, [1]),
    ]  # fmt: skip
    asked = message.topics[0].partitions[0]
    assert (asked.leader_epoch, asked.partition_epoch, asked.leader_recovery_state) == (3, 7, 0)
    assert [(one.broker_id, one.broker_epoch) for one in asked.new_isr_with_epochs] == [(1, 20), (2, -1)]
    assert message.topics[1].partitions[0].leader_recovery_state == 1
    rows = [
        {"topic_id": ONE, "partitions": [part(0, leader=1, isr=(1, 2)), part(2, int(ErrorCode.fenced_leader_epoch))]},
        {"topic_id": TWO, "partitions": [part(1, leader=1, isr=(1,))]},
    ]
    body = schemas.encode(56, 3, Kind.RESPONSE, {"throttle_time": 0, "error_code": 0, "topics": rows})
    assert request.read(frames_of_reply(body)) == {
        (ONE, 0): IsrState(1, 3, (1, 2), 1, 8),
        (ONE, 2): ErrorCode.fenced_leader_epoch,
        (TWO, 1): IsrState(1, 3, (1,), 1, 8),
    }


def test_an_error_of_the_whole_request_is_the_answer() -> None:
    message = {"throttle_time": 0, "error_code": int(ErrorCode.stale_broker_epoch), "topics": []}
    body = schemas.encode(56, 3, Kind.RESPONSE, message)
    assert isr_changes(1, 20, []).read(frames_of_reply(body)) is ErrorCode.stale_broker_epoch


def frames_of_reply(body: bytes) -> bytes:
    """A reply without its length: the correlation id, no tagged fields, the body."""
    return (4).to_bytes(4, "big") + b"\0" + body
