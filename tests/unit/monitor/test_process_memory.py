"""Which pages of a file the monitor's process may give back."""

from __future__ import annotations

from odradek.monitor.process_memory import _unchanged_mappings

_SMAPS = """\
7f0000000000-7f0000364000 r--p 00000000 08:01 11 /usr/lib/libllvmlite.so
Size:               3472 kB
Rss:                 100 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
7f0000365000-7f0005394000 r-xp 00365000 08:01 11 /usr/lib/libllvmlite.so
Rss:               50000 kB
Anonymous:             0 kB
7f0009677000-7f000983c000 r--p 09677000 08:01 11 /usr/lib/libllvmlite.so
Rss:                1800 kB
Anonymous:          1800 kB
7f000983c000-7f0009865000 rw-p 0983c000 08:01 11 /usr/lib/libllvmlite.so
Rss:                 100 kB
Anonymous:             0 kB
7f0010000000-7f0010001000 r-xp 00000000 08:01 12 /usr/lib/libother.so
Anonymous:             0 kB
7f0020000000-7f0020001000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0030000000-7f0030001000 r-xp 00000000 08:01 12 /home/a user/libllvmlite.so
Anonymous:             0 kB
"""


def test_only_pages_that_equal_the_file_are_given_back() -> None:
    """Relocated addresses are in pages of their own: without them, the library would crash."""
    assert list(_unchanged_mappings(_SMAPS, "libllvmlite.so")) == [
        (0x7F0000000000, 0x364000), (0x7F0000365000, 0x502F000), (0x7F0030000000, 0x1000),
    ]  # fmt: skip
