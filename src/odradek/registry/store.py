"""The schemas of a registry: the state of the topic's records, for many threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from odradek.client.errors import OffsetOutOfRange
from odradek.core.errors import OdradekError
from odradek.registry.topic_log import RegistryFenced, SchemasTopic
from odradek.schemas.subjects import records
from odradek.schemas.subjects.errors import RegistryError
from odradek.schemas.subjects.records import RegistryRecord
from odradek.schemas.subjects.state import SubjectState

T = TypeVar("T")
log = logging.getLogger("odradek.registry")

_ATTEMPTS = 20
_BLIND_S = 1.0
"""After a failed read of the topic, requests get what is known for this time, without another attempt."""
Decision = tuple[tuple[RegistryRecord, ...], T]
"""The records of a change, and its answer."""


class SchemaStore:
    """``read`` and ``change`` see every change that was acknowledged before, by any registry of the topic.

    While no broker is reachable, ``read`` sees the state of before."""

    def __init__(self, topic: SchemasTopic) -> None:
        self.topic = topic
        self._lock = threading.RLock()
        self._state = SubjectState()
        self._is_open = False
        self._failed_s = float("-inf")

    def read(self, question: Callable[[SubjectState], T]) -> T:
        """Returns the answer of the present state. Raises RegistryError 50001 if the topic was never readable."""
        with self._lock:
            if not self._is_open or time.monotonic() - self._failed_s > _BLIND_S:
                try:
                    self._catch_up()
                except OdradekError as error:
                    self._failed_s = time.monotonic()
                    if not self._is_open:
                        raise _store_error(error) from error
                    log.warning("the topic %s cannot be read: %s", self.topic.topic, error)
            return question(self._state)

    def change(self, decide: Callable[[SubjectState], Decision[T]]) -> T:
        """Decides on the present state, writes the records of the decision, and returns its answer.

        Another registry may write in between: then decides again. Raises the errors of ``decide``, RegistryError 50001
        if nothing was written, 50002 if the records may be in the log."""
        with self._lock:
            for _ in range(_ATTEMPTS):
                with suppress(RegistryFenced):
                    self._lead()
                    changes, answer = decide(self._state)
                    if changes:
                        self._write(changes)
                    return answer
        raise RegistryError(50001, "Error while writing: other registries write to the topic all the time")

    def _lead(self) -> None:
        try:
            self._open()
            if not self.topic.leads:
                self._catch_up()
                self.topic.lead(self._state.newest_ids())
            self._catch_up()
        except RegistryFenced:
            raise
        except OdradekError as error:
            raise _store_error(error) from error

    def _write(self, changes: tuple[RegistryRecord, ...]) -> None:
        try:
            self.topic.append(changes)
            self._catch_up()
        except RegistryFenced:
            raise
        except OdradekError as error:
            raise RegistryError(50002, f"Write to the Kafka store timed out: {error}") from error

    def _open(self) -> None:
        if not self._is_open:
            self.topic.open()

    def _catch_up(self) -> None:
        """Applies what is new in the topic. A recreated topic is read from its start."""
        self._open()
        try:
            self._replay()
        except OffsetOutOfRange as error:
            log.warning("%s: the registry begins again", error)
            self._state = SubjectState()
            self.topic.position = 0
            self.topic.open()
            self._replay()
        self._is_open = True

    def _replay(self) -> None:
        for row in self.topic.news():
            found = records.decode(row.key, row.value)
            if found is None:
                log.warning("%s has a record of another program at offset %d", self.topic.topic, row.offset)
            else:
                self._state.replay(found, row.timestamp)


def _store_error(error: OdradekError) -> RegistryError:
    return RegistryError(50001, f"Error from the backend Kafka store: {error}")
