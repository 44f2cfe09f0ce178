"""The error reply of each API, in which the fault's code refuses the whole request or each of its items."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import GeneratorType, SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from odradek.broker.fault_injection.error_replies import refusal
from odradek.broker.handlers.k03_metadata import metadata_reply
from odradek.broker.limits.reply_memory import Hangup
from odradek.broker.loop.scheduler import finish
from odradek.core.errors import ErrorCode
from odradek.wire import schemas
from odradek.wire.api_keys import FETCH, METADATA, PRODUCE
from odradek.wire.chunks import joined
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from kio.static.primitive import i32Timedelta

    from odradek.broker.handlers.api import BrokerServices, Context, Reply, ServedApi
    from odradek.broker.handlers.k01_fetch import FetchRequest
    from odradek.broker.handlers.k03_metadata import MetadataRequest

TEXT = "an injected fault"


class FaultyReplies:
    """Makes the error replies of one broker."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    def refuse(self, code: ErrorCode, api: ServedApi, context: Context, message: Any, served: Reply = None) -> Reply:
        """Returns the error reply. Raises Hangup if the reply has no field for an error.

        ``served``: the handler's reply, if the request was served.
        """
        key, version = context.api_key, context.version
        if key == PRODUCE and message.acks == 0:
            raise Hangup(TEXT)  # as in Kafka
        if key == FETCH:
            return self._refuse_fetch(code, api, context, message, served)
        if key == METADATA:
            return self._refuse_metadata(code, context, message)
        if message is None:  # a request in a version that is not served; the reply is in the oldest version
            message = SimpleNamespace()
        reply = refusal(key, version, message, code, TEXT)
        if reply is None:
            raise Hangup(TEXT)
        return reply

    def _refuse_fetch(
        self, code: ErrorCode, api: ServedApi, context: Context, message: FetchRequest, reply: Any
    ) -> Reply:
        """Refuses all partitions of the fetch session. The session continues as if the request had been served."""
        session_id = 0
        if context.version >= 7:
            if reply is None:
                reply = self._served_at_once(
                    api, context, replace(message, max_wait=cast("i32Timedelta", timedelta(0)))
                )
            data = joined(reply)
            served, _ = schemas.decode(FETCH, context.version, Kind.RESPONSE, data)
            if served.error_code is not ErrorCode.none:
                return data
            session_id = served.session_id
        asked = SimpleNamespace(topics=self._fetched(session_id, message))
        refused = refusal(FETCH, context.version, asked, code) or {}
        return refused | {"session_id": session_id}

    def _fetched(self, session_id: int, message: FetchRequest) -> list[object]:
        """Returns topics with partitions: of the session, or of the request if there is no session."""
        session = self._broker.fetch_sessions.find(session_id)
        if session is None:
            return list(message.topics)
        topics: dict[object, list[object]] = {}
        for wanted in session.wanted:
            topics.setdefault(wanted.topic, []).append(SimpleNamespace(partition=wanted.partition))
        return [
            SimpleNamespace(**{"topic_id" if isinstance(topic, UUID) else "topic": topic}, partitions=partitions)
            for topic, partitions in topics.items()
        ]

    def _served_at_once(self, api: ServedApi, context: Context, message: object) -> Any:
        reply = api.handle(self._broker, context, message)
        return finish(reply) if isinstance(reply, GeneratorType) else reply

    def _refuse_metadata(self, code: ErrorCode, context: Context, message: MetadataRequest) -> Reply:
        """Refuses the topics. The reply has brokers and controller, which a client needs for its next request."""
        named = message.topics or [
            SimpleNamespace(name=topic.name, topic_id=topic.id) for topic in self._broker.catalog.topics()
        ]
        refused = refusal(METADATA, context.version, SimpleNamespace(topics=named), code) or {}
        return {**metadata_reply(self._broker, context, message, []), "topics": refused["topics"]}
