"""The errors of the client: their classes and codes, and whether they are retriable or fatal."""

from __future__ import annotations

import importlib
import pickle
import pkgutil

import pytest

from odradek import TopicPartition, client
from odradek.client import errors
from odradek.client.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut, UnknownTopic, error_for
from odradek.client.group.errors import (
    CommitFailed,
    FencedInstance,
    InvalidGroupId,
    NoOffsetForPartition,
    RebalanceInProgress,
    RetriableCommitFailed,
    UnreleasedInstance,
    Wakeup,
)
from odradek.client.producer import BufferExhausted
from odradek.core.errors import ConfigError, CorruptRecord, ErrorCode, KafkaError, OdradekError

TP = TopicPartition("t", 0)


@pytest.mark.parametrize(("error", "retriable", "fatal"), [
    (BrokerUnreachable("x"), True, False), (ConnectionLost("x"), True, False), (RequestTimedOut("x"), True, False),
    (BufferExhausted("x"), True, False), (RetriableCommitFailed(ConnectionLost("x")), True, False),
    (RetriableCommitFailed(KafkaError(ErrorCode.stale_member_epoch)), True, False),
    (CommitFailed("x"), False, False), (NoOffsetForPartition([TP]), False, False), (Wakeup("x"), False, False),
    (InvalidGroupId("commit()"), False, False), (ConfigError("x"), False, False), (CorruptRecord("x"), True, False),
    (FencedInstance("i"), False, True), (UnreleasedInstance("i"), False, True),
    (error_for(ErrorCode.producer_fenced), False, True), (error_for(ErrorCode.not_coordinator), True, False),
    (RebalanceInProgress(), False, False), (UnknownTopic("x"), True, False),
])  # fmt: skip
def test_errors_are_retriable_or_fatal(error: OdradekError, retriable: bool, fatal: bool) -> None:
    assert (error.retriable, error.fatal) == (retriable, fatal)


def test_the_error_of_each_code_keeps_its_class_when_pickled() -> None:
    for code in ErrorCode:
        if code is ErrorCode.none:
            continue
        error = error_for(code, "why")
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), again.code, str(again)) == (type(error), code, str(error))
    out_of_range = errors.OffsetOutOfRange(TP, 5, 7, 9)
    again = pickle.loads(pickle.dumps(out_of_range))
    assert (again.partition, again.offset, again.log_start_offset, again.log_end_offset) == (TP, 5, 7, 9)


def test_odradek_client_exports_every_error() -> None:
    found = set()
    for module in pkgutil.walk_packages(client.__path__, "odradek.client."):
        members = vars(importlib.import_module(module.name)).values()
        found |= {one for one in members if isinstance(one, type) and issubclass(one, OdradekError)}
    public = {one.__name__: one for one in found if not one.__name__.startswith("_")}
    assert len(public) > 20
    assert {name: getattr(client, name, None) for name in public} == public
    assert set(public) <= set(client.__all__)
