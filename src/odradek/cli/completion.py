"""Completion of command lines in bash, zsh and fish.

``odradek --show-completion SHELL`` prints a script. A shell that starts reads the script. At each Tab, the script runs
``odradek`` with the variable ``_ODRADEK_COMPLETE``, and Typer prints the words.
"""

from __future__ import annotations

from odradek.cli.environment import COMPLETION

SHELLS = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """Returns the script of a shell. Raises typer.BadParameter for another shell."""
    if shell not in SHELLS:
        from typer import BadParameter

        raise BadParameter(f"takes {', '.join(SHELLS[:-1])} or {SHELLS[-1]}, not {shell!r}")
    # typer.completion imports this function without exporting it.
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # not exported

    return str(get_completion_script(prog_name="odradek", complete_var=COMPLETION, shell=shell))


def prepare() -> None:
    """Registers the shells, so that Typer answers when a shell's script asks for completions."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # as above

    completion_init()
