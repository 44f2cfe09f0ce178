"""The history of groups, computed on Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.pipelines.history.frames import analyse_on_spark, offset_history, stream_offset_history

__all__ = ["analyse_on_spark", "offset_history", "stream_offset_history"]

__getattr__ = loader(__name__, dict.fromkeys(__all__, "odradek.pipelines.history.frames"), extra="spark")
