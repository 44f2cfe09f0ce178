"""The middleware that applies faults to requests and blocks the later requests of the connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from odradek.broker.fault_injection.replies import TEXT, FaultyReplies
from odradek.broker.fault_injection.rules import Fault, FaultHit, FaultRules
from odradek.broker.handlers.api import Context
from odradek.broker.handlers.middleware import Middleware, Serve
from odradek.broker.limits.reply_memory import Hangup
from odradek.core.deferred import Deferred

if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    from odradek.broker.front_end.router import Router
    from odradek.broker.handlers.api import BrokerServices, Client, Later, Reply, ServedApi

    class FaultyBroker(BrokerServices, Protocol):
        """A broker and the parts of it that faults use."""

        loop: asyncio.AbstractEventLoop
        router: Router


class _BlockedConnection:
    """A connection whose requests wait. It is in ``Client.parked``.

    ``run`` serves the first request; None if that request or its reply was dropped. ``behind``: the later requests.
    """

    def __init__(self, faults: FaultInjection, connection: Client, run: Callable[[], None] | None) -> None:
        self._faults = faults
        self._connection = connection
        self._run = run
        self._timer: asyncio.TimerHandle | None = None
        self.behind: deque[Callable[[], None]] = deque()

    def release_after(self, seconds: float) -> None:
        self._timer = self._faults.broker.loop.call_later(seconds, self.wake)

    def wake(self) -> None:
        """Serves the requests; if the first one or its reply was dropped, closes the connection instead.

        Runs when the delay is over or the broker stops.
        """
        if self._run is None:
            self._connection.abort()
            return
        self._end()
        self._run()
        # A fault may block one of these requests again. Then the requests after it wait, too.
        while self.behind and not self._faults.is_blocked(self._connection):
            self.behind.popleft()()
        if self.behind:
            self._faults.blocked[self._connection].behind.extend(self.behind)

    def abandon(self) -> None:
        """Called when the client disconnects. A delayed request is still served when its time comes.

        The later requests are dropped, as if the broker had not read them.
        """
        self.behind.clear()
        if self._run is None:
            self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._connection.parked.discard(self)
        self._faults.forget(self._connection, self)


class FaultInjection(Middleware):
    """The faults of one broker. It is installed in the router while a fault is set or a connection is blocked."""

    def __init__(self, broker: FaultyBroker) -> None:
        self.broker = broker
        self.blocked: dict[Client, _BlockedConnection] = {}
        self._rules = FaultRules(broker)
        self._replies = FaultyReplies(broker)

    # calls of a test

    def add(self, kind: str, api: str | int, **options: Any) -> int:
        """Sets a fault (see ``FaultRules.add``) and returns its number. Raises ValueError."""
        number = self._rules.add(kind, api, **options)
        self.broker.router.install(self)
        return number

    def clear(self) -> None:
        """Removes all faults and the list of fired ones.

        Delayed requests still wait and are then served; dropped requests get no reply.
        """
        self._rules.clear()
        self._remove_if_idle()

    @property
    def fired(self) -> deque[FaultHit]:
        return self._rules.fired

    def pending(self) -> list[int]:
        """Returns the numbers of the faults that are still set."""
        return self._rules.pending()

    def is_blocked(self, connection: Client) -> bool:
        return connection in self.blocked

    def forget(self, connection: Client, block: _BlockedConnection) -> None:
        if self.blocked.get(connection) is block:
            del self.blocked[connection]
        self._remove_if_idle()

    def _remove_if_idle(self) -> None:
        if not self._rules and not self.blocked:
            self.broker.router.remove(self)

    # calls of the router

    def serve(self, api: ServedApi, context: Context, message: object, following: Serve) -> Later:
        block = self.blocked.get(context.connection)
        if block is not None:
            promise: Deferred[Reply] = Deferred()
            block.behind.append(
                lambda: self._resolve(promise, context, lambda: self.serve(api, context, message, following))
            )
            return promise
        fault = self._rules.match_request(context, message)
        self._remove_if_idle()
        if fault is None:
            return following(api, context, message)
        handle = partial(following, api, context, message)
        refuse = partial(self._replies.refuse, fault.code, api, context, message)
        if fault.when == "before":
            return self._before(fault, context, handle, refuse)
        reply = handle()
        if isinstance(reply, Deferred) and not reply.resolved:
            return self._later(reply, fault, context, refuse)
        return self._after(fault, context, refuse, reply.value if isinstance(reply, Deferred) else reply)

    def _before(
        self, fault: Fault, context: Context, handle: Callable[[], Later], refuse: Callable[[], Reply]
    ) -> Later:
        if fault.kind == "error":
            return refuse()
        if fault.kind == "disconnect":
            raise Hangup(TEXT)
        promise: Deferred[Reply] = Deferred()
        if fault.kind == "drop":
            self._block(context.connection, None)
            return promise
        self._block(context.connection, lambda: self._resolve(promise, context, handle)).release_after(fault.delay_s)
        return promise

    def _after(self, fault: Fault, context: Context, refuse: Callable[[Reply], Reply], reply: Reply) -> Later:
        if fault.kind == "error":
            return refuse(reply)
        if fault.kind == "disconnect":
            raise Hangup(TEXT)
        promise: Deferred[Reply] = Deferred()
        if fault.kind == "drop":
            self._block(context.connection, None)
        else:
            self.broker.loop.call_later(fault.delay_s, lambda: promise.resolve(reply))
        return promise

    def _later(
        self, reply: Deferred[Reply], fault: Fault, context: Context, refuse: Callable[[Reply], Reply]
    ) -> Deferred[Reply]:
        promise: Deferred[Reply] = Deferred()
        reply.then(lambda value: self._resolve(promise, context, lambda: self._after(fault, context, refuse, value)))
        return promise

    def _block(self, connection: Client, run: Callable[[], None] | None) -> _BlockedConnection:
        block = self.blocked[connection] = _BlockedConnection(self, connection, run)
        connection.parked.add(block)
        self.broker.router.install(self)
        return block

    @staticmethod
    def _resolve(promise: Deferred[Any], context: Context, work: Callable[[], Later]) -> None:
        """Resolves the promise with the result or the error of ``work``, now or later. Hangup closes the connection."""
        try:
            value: object = work()
        except Hangup:
            context.connection.abort()
            return
        except Exception as error:
            value = error  # the router makes a reply of it, as for an exception of a handler
        if isinstance(value, Deferred):
            value.then(promise.resolve)
        else:
            promise.resolve(value)
