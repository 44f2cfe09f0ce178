"""``Admin`` and its requests: topics, offsets, groups, transactions and settings of a cluster."""

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.client.admin.admin import Admin

__all__ = ["Admin"]

_HOMES = {"Admin": "odradek.client.admin.admin"}
__getattr__ = loader(__name__, _HOMES)
