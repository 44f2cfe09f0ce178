"""Import of kio without hypothesis. Import this module before kio.

If hypothesis is installed, the import of kio registers strategies with it. This takes 0.2 s and makes a directory
`.hypothesis` in the working directory, which a Kafka client does not need.
"""

import sys

if "kio.static._phantom" not in sys.modules and "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    try:
        import kio.static.primitive  # noqa: F401
    finally:
        del sys.modules["hypothesis"]

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode"]
