"""An abort below transaction.version 2 whose reply with the next epoch is lost. The broker fences old epochs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.insides import engine_of
from support.scripted import ScriptedCluster
from test_transactions_scripted import ScriptedCoordinator, cluster, producer

from odradek.client import ErrorCode, RequestTimedOut
from odradek.wire.api_keys import INIT_PRODUCER_ID

__all__ = ["cluster"]  # the fixture


class FencingCoordinator(ScriptedCoordinator):
    """Fences every epoch but the present one. Only a repeated InitProducerId may have the previous epoch (KIP-360)."""

    def init_reply(self, message: Any, version: int, code: int) -> dict[str, Any]:
        if message.producer_epoch == self.epoch - 1 >= 0:  # a repetition of the previous InitProducerId
            return {"error_code": code, "producer_id": 7, "producer_epoch": self.epoch}
        if message.producer_epoch not in (-1, self.epoch):
            code = ErrorCode.producer_fenced.value
        return super().init_reply(message, version, code)

    def end_reply(self, message: Any, version: int, code: int) -> dict[str, Any]:
        fenced = message.producer_epoch != self.epoch
        return super().end_reply(message, version, ErrorCode.producer_fenced.value if fenced else code)


@pytest.mark.parametrize("version", [0, 1])
def test_an_abort_whose_next_epoch_is_lost_is_called_again(cluster: ScriptedCluster, version: int) -> None:
    coordinator = FencingCoordinator(cluster, version)
    with producer(cluster) as one:
        one.init_transactions()
        one.begin_transaction()
        one.send("t", b"1", partition=0)
        one.flush()
        engine: Any = engine_of(one)
        patient = engine.producer_config
        engine.producer_config = replace(patient, max_block_ms=300)
        coordinator.cuts[INIT_PRODUCER_ID] = 1_000
        for _ in range(2):
            with pytest.raises(RequestTimedOut, match="call it again"):
                one.abort_transaction()
        coordinator.cuts[INIT_PRODUCER_ID] = 0
        engine.producer_config = patient
        one.abort_transaction()
        with one.transaction():
            one.send("t", b"2", partition=0)
        one.begin_transaction()
        one.send("t", b"3", partition=0)
        one.flush()
        one.abort_transaction()
    assert coordinator.ended == [(0, False), (1, True), (1, False)]
    epochs = [message.producer_epoch for message in coordinator.messages(INIT_PRODUCER_ID)]
    assert set(epochs[1:-1]) == {0}
    assert epochs[-1] == 1
    assert coordinator.batches == [(7, 0, 0, True), (7, 1, 0, True), (7, 1, 1, True)]
