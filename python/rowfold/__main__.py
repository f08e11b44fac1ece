# SPDX-License-Identifier: MIT
"""The command line: ``rowfold`` and ``python -m rowfold``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from . import errors, quickstart
from .bench import command as bench
from .commands import explain, info, run, score
from .commands.options import in_options
from .commands.output import Stopped


def parser() -> argparse.ArgumentParser:
    """The parser with all sub-commands."""
    top = argparse.ArgumentParser(
        prog="rowfold", description="A linear layer, elementwise operators and a row reduction as one fused operation."
    )
    top.add_argument("--version", action=_Version, nargs=0, help="print the library's version and exit")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (info, explain, run, score, bench, quickstart):
        command.add_parser(commands)
    return top


class _Version(argparse.Action):
    """Asks the library for its version only when it is wanted."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import rowfold

        print(f"rowfold {rowfold.__version__}")
        parser.exit()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    The exit status is 0, 1 for an error of rowfold's, 2 for a wrong command line, 128 and its number for a signal.
    """
    try:
        chosen = parser().parse_args(arguments)
        status: int = chosen.run(chosen)
        sys.stdout.flush()
    except BrokenPipeError:
        # Who reads has seen enough, as head does. What is left to print goes nowhere, also at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except errors.Error as error:
        print(f"rowfold: {in_options(str(error))}", file=sys.stderr)
        return 1
    except MemoryError as error:  # numpy's, of a layer that was asked for
        print(f"rowfold: not enough memory: {error}".removesuffix(": "), file=sys.stderr)
        return 1
    except Stopped as stopped:
        return 128 + stopped.number
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status


if __name__ == "__main__":
    sys.exit(main())
