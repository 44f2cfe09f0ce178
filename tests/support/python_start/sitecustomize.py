"""Python imports this module at the start of each process that Java starts for Spark (``support.python_starts``).

It asks the fork server for a process with the same environment, files and path, and waits for its end. If there is no
fork server, or if it refuses, this process does the work itself.
"""

import os
import sys

_MODULES = ("pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")
_ADDRESS = "ODRADEK_TEST_FORK_SERVER"
_HERE = os.path.dirname(__file__)


def _description() -> dict[str, object]:
    import signal

    from process_facts import SIGNALS, facts

    environment = dict(os.environ)
    del environment[_ADDRESS]
    paths = [path for path in environment.pop("PYTHONPATH", "").split(os.pathsep) if path and path != _HERE]
    if paths:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    umask = os.umask(0)
    os.umask(umask)
    return {
        "arguments": sys.orig_argv,
        "environment": environment,
        "path": [path for path in sys.path if path != _HERE],
        "folder": os.getcwd(),
        "umask": umask,
        "group": os.getpgid(0),
        "ignored": [int(number) for number in SIGNALS if signal.getsignal(number) is signal.SIG_IGN],
        "facts": facts(),
    }


def _hand_over(address: str) -> None:
    """Returns only if the fork server is not there or refuses."""
    import marshal
    import signal
    import socket

    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(address)
        data = marshal.dumps(_description())
        socket.send_fds(connection, [len(data).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(data)
        pid = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    except OSError:
        pid = 0
    if pid == 0:
        connection.close()
        return
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: os.kill(pid, number))
    status = connection.recv(4, socket.MSG_WAITALL)
    code = int.from_bytes(status, "big", signed=True) if len(status) == 4 else -signal.SIGKILL
    if code < 0:
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if sys.orig_argv[1:2] == ["-m"] and set(sys.orig_argv[2:3]) & set(_MODULES) and _ADDRESS in os.environ:
    _hand_over(os.environ[_ADDRESS])
