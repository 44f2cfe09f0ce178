"""pyarrow without pandas: pyarrow loads pandas, if it is installed, at the first array that it makes of a list.

The monitor has no use for pandas, which takes 35 MB.
"""

from __future__ import annotations

import sys


class _Refusal:
    """A finder of modules that refuses pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


def load_arrow() -> None:
    """Imports pyarrow, which then does without pandas in this process. Other modules may import pandas afterwards."""
    refusal = _Refusal()
    sys.meta_path.insert(0, refusal)
    try:
        import pyarrow as pa

        pa.array([0])  # here pyarrow looks for pandas, once
    finally:
        sys.meta_path.remove(refusal)
