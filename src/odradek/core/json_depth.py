"""JSON of strangers: how deep it nests is looked at before it is parsed.

Python's parser, and whatever walks its result afterwards, calls itself for each level. A line of 100,000 brackets would
end in a RecursionError anywhere on the way.
"""

from __future__ import annotations

import json
import re
from typing import Any

MAX_DEPTH = 256
_JSON_PARTS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


class NestedTooDeep(ValueError):
    """What nests deeper than it may."""

    def __init__(self, most: int) -> None:
        super().__init__(f"nested deeper than {most} levels")


def parse_json(text: str | bytes) -> Any:
    """``json.loads``. Raises ValueError, also for what nests deeper than ``MAX_DEPTH``."""
    brackets = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    # Most texts have too few brackets to nest deep, and these are counted in no time.
    if sum(map(text.count, brackets)) > MAX_DEPTH:  # type: ignore[arg-type]  # each kind with its own
        whole = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        check_depth((part[0] for part in _JSON_PARTS.findall(whole)), "[{", "]}", MAX_DEPTH)
    return json.loads(text)


def check_depth(parts: Any, opening: str, closing: str, most: int) -> None:
    """``parts``: characters, in the order of the text. Raises NestedTooDeep."""
    depth = 0
    for part in parts:
        if part in opening:
            depth += 1
            if depth > most:
                raise NestedTooDeep(most)
        elif part in closing:
            depth -= 1
