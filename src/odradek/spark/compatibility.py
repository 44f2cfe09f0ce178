"""The parts of PySpark that the installed version may lack. The source works with PySpark 4.0 and newer.

A class that the installed PySpark lacks is an empty class here; Spark never makes an object of it. ``require`` refuses
a query that needs a missing part.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pyspark
import pyspark.sql.datasource as _datasource

from odradek.core.errors import ConfigError

if TYPE_CHECKING:
    from odradek.spark.options import ReadOptions

# The first PySpark version with each part.
STREAM_WRITES = FILTERS = (4, 1)
READ_LIMITS = TRANSACTIONS = (4, 2)


def version() -> tuple[int, int]:
    """Returns the first two numbers of PySpark's version."""
    major, minor = re.findall(r"\d+", pyspark.__version__)[:2]
    return int(major), int(minor)


def require(what: str, since: tuple[int, int]) -> None:
    """Raises ConfigError if PySpark is older than ``since``. ``what`` begins the message, and may be a plural."""
    if version() < since:
        raise ConfigError(
            f"{what}: this needs PySpark {since[0]}.{since[1]} or newer, and PySpark {pyspark.__version__} is installed"
        )


def check_stream(options: ReadOptions) -> None:
    """Raises ConfigError for options that limit a micro-batch if this PySpark has no limits for Python sources."""
    limits = {
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
        "maxBytesPerTrigger": options.max_bytes_per_trigger,
        "minOffsetsPerTrigger": options.min_offsets_per_trigger,
    }
    for name, value in limits.items():
        if value is not None:
            require(f"option {name}", READ_LIMITS)


def _part(module: object, name: str) -> Any:
    return getattr(module, name, None) or type(name, (), {})


try:
    import pyspark.sql.streaming.datasource as _limits
except ModuleNotFoundError:
    _limits: Any = None  # type: ignore[no-redef]  # ``_part`` then makes empty classes

ReadLimit = _part(_limits, "ReadLimit")
ReadAllAvailable = _part(_limits, "ReadAllAvailable")
ReadMaxBytes = _part(_limits, "ReadMaxBytes")
ReadMaxRows = _part(_limits, "ReadMaxRows")
ReadMinRows = _part(_limits, "ReadMinRows")
SupportsTriggerAvailableNow = _part(_limits, "SupportsTriggerAvailableNow")

DataSourceStreamArrowWriter = _part(_datasource, "DataSourceStreamArrowWriter")

EqualNullSafe = _part(_datasource, "EqualNullSafe")
EqualTo = _part(_datasource, "EqualTo")
GreaterThan = _part(_datasource, "GreaterThan")
GreaterThanOrEqual = _part(_datasource, "GreaterThanOrEqual")
In = _part(_datasource, "In")
IsNotNull = _part(_datasource, "IsNotNull")
LessThan = _part(_datasource, "LessThan")
LessThanOrEqual = _part(_datasource, "LessThanOrEqual")
Not = _part(_datasource, "Not")
StringContains = _part(_datasource, "StringContains")
StringEndsWith = _part(_datasource, "StringEndsWith")
StringStartsWith = _part(_datasource, "StringStartsWith")
