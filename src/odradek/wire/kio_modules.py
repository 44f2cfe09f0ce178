"""kio's schemas and its reader, which are imported at their first use: a broker begins to serve without them.

Their import takes 10 ms, most of it for dataclasses. A broker loads them soon after its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import odradek.core.kio_import  # noqa: F401  # isort: skip  (before kio)

from odradek.core.lazy_import import LazyModule

if TYPE_CHECKING:
    from kio import index as messages
    from kio import serial
    from kio.schema import index as names
    from kio.serial import _introspect as introspect
else:
    messages, names = LazyModule("kio.index"), LazyModule("kio.schema.index")
    serial, introspect = LazyModule("kio.serial"), LazyModule("kio.serial._introspect")

__all__ = ["introspect", "load", "messages", "names", "serial"]


def load() -> None:
    """Imports all of them."""
    _ = messages.load_request_schema, names.api_key_map, serial.entity_reader, introspect.classify_field
