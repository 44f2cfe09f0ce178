"""The cause of a failed Spark job, in one line.

Spark reports a failure as a text of many lines: Java's exceptions with their causes, Python's tracebacks, or both
inside each other. The last exception of such a text is the cause. Exceptions before it may name the file.
"""

from __future__ import annotations

import re

from odradek.spark.errors import reason
from odradek.text.printable import one_line

# A line at the left margin with an exception. Java's are ": java.io.IOException: Full" and "Caused by:
# java.io.IOException: Full"; suppressed exceptions are indented. In Python's "ValueError: no", the class has a module
# or a usual ending, and there may be no text.
_LINK = re.compile(
    r"^(?:(?:: |Caused by: )(?P<java>(?:[\w$]+\.)+[\w$]+): (?P<said>\S.*)"
    r"|(?!org\.|java\.|scala\.)(?P<name>(?:\w+\.)+\w+|\w+(?:Error|Exception|Exit|Iteration)): (?P<text>\S.*)"
    r"|(?P<bare>\w+Error))$",
    re.MULTILINE,
)
# What follows describes the query, not its failure.
_QUERY = "\n=== Streaming Query ==="
_STREAM = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_CLASS_MARK = re.compile(r"^\[[A-Z_.]+\] ")
_STATE = re.compile(r"(?: SQLSTATE: \w+;?)+$")
_RAISED = re.compile(r"^\[USER_RAISED_EXCEPTION\] ")
_SHARED = re.compile(r"Multiple streaming jobs detected for (\d+)")
# Spark writes each file of a checkpoint under another name and renames it. Hadoop renames its checksum, too.
_EXISTS = re.compile(
    r"FileAlreadyExistsException: [Rr]ename destination (?P<folder>\S.*)/"
    r"(?:(?P<sum>\.[^/\s]+\.crc)|(?P<begun>metadata)|(?:offsets|commits)/(?P<batch>\d+)) already exists"
)
_ASSERTED = re.compile(
    r"AssertionError: assertion failed\n(?:\s+at .*\n)*?\s+at org\.apache\.spark\.sql\.execution\.streaming\."
)
"""A check of Spark without a text, in the code of its checkpoint: the files are not those that it has just read."""
_ONE_RUN = "Let only one run use a checkpoint, and run the command again when the other one has ended"
_PY4J = "An error occurred while calling "
_PLACE = re.compile(r"\w+:/|(?<!\S)/\S")


def cause_of(error: BaseException) -> str:
    """Returns the cause of a Spark error in one line: the error of odradek that it quotes, else the last exception
    that it quotes, else the first line. If an exception before the last names a file, the line names it, too."""
    ours = reason(error)
    if ours is not None:
        return ours
    said = str(error)
    if in_use := _cause_in_checkpoint(f"{said.partition(_QUERY)[0]}\n{_java_text(error)}"):
        return in_use
    lines = [line.strip().removeprefix(": ") for line in said.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(_PY4J)] or lines
    first = _plain(_STREAM.sub("", lines[0])) if lines else type(error).__name__
    chain = [_shown(found) for found in _LINK.finditer(f"{said.partition(_QUERY)[0]}\n: {_java_text(error)}")]
    chain = [one for one in chain if not one.startswith(_PY4J) and not one.endswith(":")]
    if not chain:
        return first
    last = chain[-1]
    if _LINK.match(first) is None and not first.endswith(":") and last.endswith(first):
        return first
    place = next((one for one in reversed(chain) if _PLACE.search(one)), None)
    if place is None or _PLACE.search(last) or last in place:
        return last
    return f"{last} ({_CLASS_MARK.sub('', place.rpartition('Exception: ')[2])})"


def _cause_in_checkpoint(said: str) -> str | None:
    """Returns why Spark could not write a file of the checkpoint, if the file or its checksum was there already."""
    shared, there = _SHARED.search(said), _EXISTS.search(said)
    if batch := (shared and shared[1]) or (there and there["batch"]):
        return f"another run has written micro-batch {batch} to the checkpoint at the same time. {_ONE_RUN}"
    if there is None and _ASSERTED.search(said):
        return f"the checkpoint has changed while Spark read it, as if another run used it at the same time. {_ONE_RUN}"
    if there is None:
        return None
    if there["begun"]:
        return f"another run has just begun the checkpoint {there['folder']}. {_ONE_RUN}"
    return (
        f"{there['folder']}/{there['sum']} is the checksum of an earlier file, which was lost or deleted without it. "
        "Delete this checksum, and run the command again"
    )


def _java_text(error: BaseException) -> str:
    """Returns the stack trace of Java that PySpark keeps beside its own message."""
    return str(getattr(error, "_stackTrace", None) or "")


def _shown(link: re.Match[str]) -> str:
    """Returns a link without the class names of PySpark, which say less than the text."""
    if link["bare"] is not None:
        return link["bare"]
    name, text = (link["java"], link["said"]) if link["java"] else (link["name"], link["text"])
    return _plain(text) if name.startswith(("pyspark.", "py4j.")) else f"{name}: {_plain(text)}"


def _plain(text: str) -> str:
    text = _STATE.sub("", one_line(text))
    return _RAISED.sub("", text)
