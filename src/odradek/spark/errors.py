"""The one line that matters in what Spark makes of an error in a Python data source."""

from __future__ import annotations

import re

# The last line of the traceback that Spark quotes: "odradek.spark.plan.DataLoss: data may have been lost: …", maybe
# behind the name of a Java exception.
_QUOTED = re.compile(r"^(?:\S*: )?(odradek\.[\w.]+): (.+)$", re.MULTILINE)


def reason(error: BaseException) -> str | None:
    """What one of odradek's own errors said, where ``error`` is one or quotes one; else None.

    Spark hands on an error of a data source as text, inside an exception of its own and with the traceback in it.
    """
    from odradek.core.errors import OdradekError

    if isinstance(error, OdradekError):
        return str(error)
    found = _QUOTED.findall(str(error))
    return found[-1][1].strip() if found else None
