"""What must be equal in a process of the fork server and in the one that Java has started."""

import os
import resource
import signal
import sys

_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD)


def facts() -> dict[str, object]:
    return {
        "executable": sys.executable,
        "prefix": sys.prefix,
        "flags": tuple(sys.flags),
        "seed": os.environ.get("PYTHONHASHSEED", ""),
        "mounts": os.readlink("/proc/self/ns/mnt"),
        "limits": [resource.getrlimit(limit) for limit in _LIMITS],
    }
