"""To be imported before kio: keeps it from taking hypothesis along, where that is installed.

kio registers strategies for its types with hypothesis while it is imported. That takes 0.2 s, and leaves a directory
`.hypothesis` wherever a program was started, which nobody asked for who only wanted a Kafka client.
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
