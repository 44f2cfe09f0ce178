"""Registrations of partitions for tests."""

from __future__ import annotations

from odradek.catalog.registrations import PartitionRegistration

NODE = 1
NO_DIRECTORY = b"\0" * 16


def registered(
    replicas: tuple[int, ...] = (NODE,),
    leader: int = NODE,
    *,
    isr: tuple[int, ...] | None = None,
    leader_epoch: int = 0,
    partition_epoch: int = 0,
    index: int = 0,
) -> PartitionRegistration:
    """A partition whose replicas are all in sync, unless ``isr`` says otherwise."""
    return PartitionRegistration(
        index, replicas, replicas if isr is None else isr, leader, leader_epoch, partition_epoch, 0, (), (),
        (NO_DIRECTORY,) * len(replicas), (), (),
    )  # fmt: skip
