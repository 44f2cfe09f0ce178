"""``python -m bench.copying …``: ``odradek.broker`` without ``sendfile``, to measure the gain from ``sendfile``."""

from __future__ import annotations

import sys

from odradek.broker import __main__ as broker
from odradek.broker.handlers import k01_fetch

if __name__ == "__main__":
    vars(k01_fetch)["FILE_FROM_BYTES"] = 1 << 62  # no records are so long, so all are copied
    sys.exit(broker.main(sys.argv[1:]))
