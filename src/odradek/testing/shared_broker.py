"""One broker for all worker processes of pytest-xdist: the main process owns it, and the workers use its address."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

from odradek.core.errors import KafkaError
from odradek.testing.broker import Broker, BrokerClock, Faults
from odradek.testing.process import BrokerFailed, BrokerProcess


class SharedBroker(Broker):
    """The broker that another process owns, as ``odradek_broker`` of a worker.

    Tests may use its address, create topics and read its log. What would disturb the tests of other workers raises
    BrokerFailed: ``stop``, ``kill``, ``clock`` and ``faults``.
    """

    def __init__(self, host: str, port: int, directory: Path) -> None:
        self._security = None
        self._engine = _OtherProcess(directory, host=host, port=port)
        self.data_dir = self._engine.data_dir
        self.clock = BrokerClock(self._engine)
        self.faults = Faults(self._engine)

    def start(self) -> Self:
        """Returns the broker, which runs already."""
        return self

    def close(self) -> None:
        """Does nothing: the main process ends the broker."""


class _OtherProcess(BrokerProcess):
    """The part of a broker's methods that work for a process that does not own the broker."""

    running = True
    failed = False

    def command(self, do: str, **arguments: Any) -> None:
        if do == "create_topic":
            self._create_topic(**arguments)
        elif do != "clear_faults":  # the end of each test: there are none
            _refuse(do)

    def _create_topic(self, name: str, partition_count: int, configs: Mapping[str, str]) -> None:
        from odradek.client.admin import Admin
        from odradek.client.model import NewTopic

        with Admin(self.bootstrap_servers) as admin:
            try:
                admin.create_topics([NewTopic(name, partition_count, configs=configs)])
            except KafkaError as error:
                raise ValueError(str(error)) from error

    def stop(self) -> NoReturn:
        _refuse("stop")

    def kill(self) -> NoReturn:
        _refuse("kill")


def _refuse(what: str) -> NoReturn:
    raise BrokerFailed(
        f"{what}: all worker processes share this broker (odradek_shared_broker), so a test may not change it for the "
        "others; start a broker for this test: with odradek.Broker() as broker"
    )
