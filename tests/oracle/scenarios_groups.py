"""A classic group of two members. Each member has its own connection, so one member can wait while the other acts."""

from __future__ import annotations

from typing import Any

from recording import Pending, Run, Scenario

JOIN, HEARTBEAT, LEAVE, SYNC, DESCRIBE, FIND = 11, 12, 13, 14, 15, 10


def fresh_group(run: Run, label: str = "a") -> str:
    """A group whose coordinator is available."""
    group = run.fresh("group", label)
    run.until(FIND, 2, {"key": group, "key_type": 0}, lambda reply: reply.error_code == 0)
    described = {"groups": [group], "include_authorized_operations": False}
    run.until(DESCRIBE, 4, described, lambda reply: reply.groups[0].error_code in (0, 69))
    return group


def join(run: Run, group: str, client: str, member_id: str = "") -> Pending:
    message = {"group_id": group, "session_timeout": 10_000, "rebalance_timeout": 5000, "member_id": member_id,
               "group_instance_id": None, "protocol_type": "consumer",
               "protocols": [{"name": "range", "metadata": b""}]}  # fmt: skip
    return run.send(JOIN, 5, message, client=client, unordered=("members",))


def member_of(run: Run, group: str, client: str) -> str:
    """The member id in the reply to a first join."""
    member_id: str = join(run, group, client).receive().member_id
    run.name_value(member_id, f"member {client}")
    return member_id


def wait_for_state(run: Run, group: str, state: str) -> Any:
    """Waits until the group is in this state. The next request then meets the group in this state."""
    message = {"groups": [group], "include_authorized_operations": False}
    return run.until(DESCRIBE, 4, message, lambda reply: reply.groups[0].group_state == state)


def two_members_join_and_leave(run: Run) -> None:
    group = fresh_group(run)
    a, b = (member_of(run, group, client) for client in "ab")

    def call(api_key: int, client: str, **fields: Any) -> None:
        run.call(api_key, 3, {"group_id": group} | fields, client=client)

    def beat(client: str, member_id: str, generation: int) -> None:
        call(HEARTBEAT, client, generation_id=generation, member_id=member_id, group_instance_id=None)

    def sync(client: str, member_id: str, generation: int, **assignments: bytes) -> Pending:
        rows = [{"member_id": {"a": a, "b": b}[to], "assignment": what} for to, what in assignments.items()]
        message = {"group_id": group, "generation_id": generation, "member_id": member_id, "group_instance_id": None,
                   "assignments": rows}  # fmt: skip
        return run.send(SYNC, 3, message, client=client)

    join(run, group, "a", a).receive()
    sync("a", a, 1, a=b"all").receive()
    beat("a", a, 1)
    beat("a", a, 7)
    waiting = join(run, group, "b", b)
    wait_for_state(run, group, "PreparingRebalance")
    beat("a", a, 1)
    join(run, group, "a", a).receive()
    waiting.receive()
    follower = sync("b", b, 2)
    sync("a", a, 2, a=b"half", b=b"other half").receive()
    follower.receive()
    call(LEAVE, "b", members=[{"member_id": b, "group_instance_id": None}])
    beat("b", b, 2)
    beat("a", a, 2)
    call(LEAVE, "a", members=[{"member_id": a, "group_instance_id": None}])
    call(LEAVE, "a", members=[{"member_id": a, "group_instance_id": None}])


SCENARIOS: tuple[Scenario, ...] = (two_members_join_and_leave,)
