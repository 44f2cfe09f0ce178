"""Transactions: each request in each state of a transactional id, by the protocol of version 2 and by the older one.

Each request has its own transactional id, because most requests change the state of their transactional id.
"""

from __future__ import annotations

from collections.abc import Callable

import transaction_requests
from group_requests import GroupRequests
from recording import Run, Scenario
from transaction_requests import Producer, initialised, opened, prepared

SERIAL = True
CONFIG = transaction_requests.CONFIG
Enter = Callable[[Run, str, str], Producer]
"""A function that returns a new producer in a state. Its arguments are the run, a topic and the producer's label."""


def _requests(topic: str, group: str, old: bool) -> dict[str, Callable[[Producer], object]]:
    """Name -> a request with the present producer id and epoch, or with other ones."""
    end, add, produce, offsets = (4, 3, 11, 4) if old else (5, 4, 12, 5)
    return {
        "init": lambda p: p.init(),
        "recover": lambda p: p.recover(),
        "recover with the last epoch": lambda p: p.recover(p.epoch - 1),
        "recover with a later epoch": lambda p: p.recover(p.epoch + 1),
        "recover another id": lambda p: p.recover(producer_id=7),
        "commit": lambda p: p.end(True, version=end),
        "abort": lambda p: p.end(False, version=end),
        "commit with the last epoch": lambda p: p.end(True, version=end, producer_epoch=p.epoch - 1),
        "abort with the last epoch": lambda p: p.end(False, version=end, producer_epoch=p.epoch - 1),
        "commit with a later epoch": lambda p: p.end(True, version=end, producer_epoch=p.epoch + 1),
        "commit by the other protocol": lambda p: p.end(True, version=9 - end),
        "abort by the other protocol": lambda p: p.end(False, version=9 - end),
        "add": lambda p: p.add((topic, 1), version=add),
        "add again": lambda p: p.add((topic, 0), version=add),
        "verify": lambda p: p.add((topic, 0), version=4, verify_only=True),
        "add offsets": lambda p: p.add_offsets(group),
        "commit offsets": lambda p: p.commit_offsets(group, (topic, 0, 1), version=offsets),
        "produce": lambda p: p.send(topic, version=produce),
        "produce elsewhere": lambda p: p.send(topic, version=produce, partition=1),
    }


def _state(name: str, enter: Enter, old: bool) -> Scenario:
    def scenario(run: Run) -> None:
        topic = run.topic()
        requests = GroupRequests(run)
        run.create(topic, 2)
        requests.wait_until_known(topic, 2)
        for number, (what, request) in enumerate(_requests(topic, requests.group, old).items()):
            producer = enter(run, topic, str(number))
            run.note("request", what, producer.state())
            request(producer)
            run.note("state after it", what, _settled(producer))
            producer.log()

    scenario.__name__ = f"requests_{name}_{'before' if old else 'at'}_version_2"
    return scenario


def _settled(producer: Producer) -> str:
    """Waits for the end of a transaction that is ending, unless it stays prepared. Returns the state."""
    if producer.stays_prepared:
        return producer.state()
    producer.wait_for(*transaction_requests.COMPLETE, "Ongoing", "")
    return producer.state()


def _ended(commit: bool, old: bool) -> Enter:
    def enter(run: Run, topic: str, label: str) -> Producer:
        producer = opened(run, topic, label, old=old, times=2)
        if commit:
            producer.commit(version=4 if old else 5)
        else:
            producer.abort(version=4 if old else 5)
        return producer

    return enter


def _prepared(commit: bool, old: bool) -> Enter:
    return lambda run, topic, label: prepared(run, topic, label, commit=commit, old=old, times=2)


def _unknown(run: Run, topic: str, label: str) -> Producer:
    producer = Producer(run, label)
    producer.id, producer.epoch = 5, 1
    return producer


def _states(old: bool) -> dict[str, Enter]:
    return {
        "for_an_unknown_id": _unknown,
        "in_empty": lambda run, topic, label: initialised(run, label, times=2),
        "in_ongoing": lambda run, topic, label: opened(run, topic, label, old=old, times=2),
        "in_prepare_commit": _prepared(True, old),
        "in_prepare_abort": _prepared(False, old),
        "in_complete_commit": _ended(True, old),
        "in_complete_abort": _ended(False, old),
    }


SCENARIOS: tuple[Scenario, ...] = tuple(
    _state(name, enter, old) for old in (False, True) for name, enter in _states(old).items()
)
