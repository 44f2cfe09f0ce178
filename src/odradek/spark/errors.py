"""Extraction of odradek's error message from a Spark exception."""

from __future__ import annotations

import re

# The last line of the traceback that Spark quotes: "odradek.spark.offsets.plan.DataLoss: data may have been lost: …".
# The name of a Java exception may precede it.
_QUOTED = re.compile(r"^(?:\S*: )?(odradek\.[\w.]+): (.+)$", re.MULTILINE)


def reason(error: BaseException) -> str | None:
    """Returns the message of an odradek error, if ``error`` is one or quotes one; else None.

    Spark passes an error of a data source on as text: in an exception of Spark's, with the Python traceback.
    """
    from odradek.core.errors import OdradekError

    if isinstance(error, OdradekError):
        return str(error)
    found = _QUOTED.findall(str(error))
    return found[-1][1].strip() if found else None
