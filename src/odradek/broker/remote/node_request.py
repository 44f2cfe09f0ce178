"""A request to another node, with the type of its reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, NamedTuple, TypeVar

from odradek.wire import frames

M = TypeVar("M")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class NodeRequest(NamedTuple, Generic[R_co]):
    """A request of one version of an API. ``body``: a mapping for ``wire.schemas.encode``, or packed bytes.

    ``read`` gets a whole reply without its length, so the correlation id comes first. It returns what the sender needs
    of the reply, and raises ValueError if the bytes are no reply to this request. It never returns None.
    """

    api_key: int
    version: int
    body: Mapping[str, object] | bytes
    read: Callable[[bytes], R_co]

    def frame(self, correlation_id: int, client_id: str | None) -> bytes:
        """Returns the whole request, with its length."""
        return frames.encode_request(self.api_key, self.version, correlation_id, client_id, self.body)


def schema_request(api_key: int, version: int, body: Mapping[str, object], take: Callable[[M], R]) -> NodeRequest[R]:
    """Returns a request whose reply kio's schema reads. ``take`` gets the reply, an instance of kio's class for this
    version, and returns what the sender needs of it."""

    def read(data: bytes) -> R:
        _, message = frames.decode_reply(api_key, version, data)
        return take(message)

    return NodeRequest(api_key, version, body, read)
