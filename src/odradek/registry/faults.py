"""Faults of a registry, for tests: errors, delays and ends of connections."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from odradek.registry.http_server import HttpReply, HttpRequest

_KEPT = 10_000
_PASSES = HttpReply(status=0)


class RegistryCall(NamedTuple):
    """A request that a registry has got. ``path``: without the query, as ``/schemas/ids/1``."""

    method: str
    path: str


@dataclass
class _Fault:
    number: int
    kind: str
    path: str
    method: str | None
    left: int | None
    reply: HttpReply = _PASSES
    seconds: float = 0.0


class RegistryFaults:
    """Faults for the next requests.

    Each call sets one fault for the next ``times`` requests whose path begins with ``path``; with ``times=None`` it
    stays until ``clear``. ``method`` limits it to requests such as ``"POST"``. If several faults match, the one that
    was set first applies. The calls return the fault's number, which is also in ``fired``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._faults: list[_Fault] = []
        self._count = 0
        self._fired: deque[int] = deque(maxlen=_KEPT)
        self._calls: deque[RegistryCall] = deque(maxlen=_KEPT)

    def error(
        self, status: int = 500, *, path: str = "/", method: str | None = None, times: int | None = 1,
        code: int | None = None, message: str = "a fault of the test",
    ) -> int:  # fmt: skip
        """Replies this status of HTTP, with Confluent's error code ``code``, or ``status`` if it is None. The request
        has no effect."""
        reply = HttpReply(status, {"error_code": status if code is None else code, "message": message})
        return self._add(_Fault(0, "error", path, method, times, reply=reply))

    def delay(self, seconds: float, *, path: str = "/", method: str | None = None, times: int | None = 1) -> int:
        """Begins with the request so many seconds later."""
        return self._add(_Fault(0, "delay", path, method, times, seconds=seconds))

    def disconnect(self, *, path: str = "/", method: str | None = None, times: int | None = 1) -> int:
        """Ends the connection instead of a reply. The request has no effect."""
        return self._add(_Fault(0, "disconnect", path, method, times, reply=HttpReply(drops=True)))

    def _add(self, fault: _Fault) -> int:
        with self._lock:
            self._count += 1
            fault.number = self._count
            self._faults.append(fault)
            return fault.number

    @property
    def fired(self) -> list[int]:
        """The numbers of the faults that were applied since the last ``clear``, oldest first."""
        with self._lock:
            return list(self._fired)

    @property
    def calls(self) -> list[RegistryCall]:
        """The requests since the last ``clear``, oldest first (the last 10,000)."""
        with self._lock:
            return list(self._calls)

    def clear(self) -> None:
        """Removes all faults, and empties ``fired`` and ``calls``."""
        with self._lock:
            self._faults.clear()
            self._fired.clear()
            self._calls.clear()

    def end(self) -> None:
        """Lets delayed requests go on: the registry stops."""
        self._ended.set()
        self._ended = threading.Event()

    def answer(self, request: HttpRequest) -> HttpReply:
        """Returns the reply of a fault; status 0 if no fault applies."""
        path = "/" + "/".join(request.path)
        with self._lock:
            self._calls.append(RegistryCall(request.method, path))
            fault = next((one for one in self._faults if _matches(one, request.method, path)), None)
            if fault is None:
                return _PASSES
            self._fired.append(fault.number)
            if fault.left is not None:
                fault.left -= 1
                if fault.left <= 0:
                    self._faults.remove(fault)
            ended = self._ended
        if fault.kind == "delay":
            ended.wait(fault.seconds)
        return fault.reply


def _matches(fault: _Fault, method: str, path: str) -> bool:
    return path.startswith(fault.path) and fault.method in (None, method)
