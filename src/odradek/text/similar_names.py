"""The name that a person may have meant by an unknown one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_DIGITS = re.compile(r"\d+")


def nearest(given: str, known: Iterable[str]) -> str:
    """Returns `` (did you mean a?)``, or an empty text if no known name is similar."""
    names = list(known)
    begun = sorted(name for name in names if len(given) > 3 and name.startswith(given))
    folded = [name for name in names if name.strip().casefold() == given.strip().casefold()]
    matches = folded or begun or difflib.get_close_matches(given, names, n=1, cutoff=0.75) or _family(given, names)
    return f" (did you mean {matches[0]}?)" if matches else ""


def _family(given: str, names: list[str]) -> list[str]:
    """Returns the nearest of the names that differ in digits only, however short they are."""
    form = _DIGITS.sub("0", given)
    others = [name for name in names if _DIGITS.search(name) and _DIGITS.sub("0", name) == form]
    return difflib.get_close_matches(given, others, n=1, cutoff=0)
