"""``python -m odradek`` and the command ``odradek``: Ctrl-C gets a line from the first import on."""

import os
import sys


def main() -> None:
    """Entry point of the command; ends the process with an exit code."""
    try:
        from odradek.cli.main import main as run
    except KeyboardInterrupt:
        words = "nothing was sent" if sys.argv[1:2] == ["produce"] else "nothing was done"
        os.write(2, f"odradek: interrupted before the command began: {words}\n".encode())
        os._exit(130)
    run()


if __name__ == "__main__":
    main()
