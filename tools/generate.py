#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes what repeats something else: numbers of operators in the header, and the man pages.

The numbers come from the tables, doc/rowfold.1 from the command line's parsers, section 3 from the headers.

    python3 tools/generate.py           in a checkout, after a change of any of these; a test compares

What it writes is committed, so that a build needs neither Python nor this.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python"))

from rowfold.__main__ import parser  # noqa: E402

ENVIRONMENT_TABLE = re.compile(r"^\| `(ROWFOLD_\w+)` \| (.*) \|$", re.MULTILINE)  # of doc/command-line.md


def escaped(text: str) -> str:
    """Text for troff: a backslash, a hyphen and a quote stand for themselves, also at the start of a line."""
    text = (
        text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("^", "\\(ha").replace("~", "\\(ti")
    )
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def verbatim(text: str) -> Iterator[str]:
    """Lines as they are, in a fixed width where there is one."""
    yield from (".PP", ".RS 4", ".EX", escaped(text.rstrip("\n")), ".EE", ".RE")


def header(name: str, section: int, summary: str) -> Iterator[str]:
    """Title and name."""
    yield f'.TH {name.upper()} {section} "" "rowfold" "rowfold"'
    yield from (".SH NAME", f"{name} \\- {escaped(summary)}")


# rowfold.h

TABLES = ("ops.def", "reductions.def")
ROW = re.compile(r"^RFI_(?:HOST_)?(?:OP|REDUCTION)\((\w+),\s*(\d+),", re.MULTILINE)
NUMBERS = re.compile(r"(?<=^    RF_OP_MUL = )100,.*?(?=^} rf_op_kind;)", re.MULTILINE | re.DOTALL)
HEADER_WIDTH = 136


def library_header() -> str:
    """The header, with an enumerator for each row of the tables: a line for each ten of numbers, or more."""
    rows = [row for table in TABLES for row in ROW.findall((ROOT / "lib" / table).read_text())]
    lines, of = [], None
    for number, name in sorted((int(number), name) for name, number in rows):
        entry = f" RF_OP_{name} = {number},"
        if number // 10 == of and len(lines[-1]) + len(entry) <= HEADER_WIDTH:
            lines[-1] += entry
        else:
            lines.append(f"   {entry}")
        of = number // 10
    made = "\n".join(lines).removesuffix(",") + "\n"
    first = "    RF_OP_MUL = "
    return NUMBERS.sub(lambda _: made.removeprefix(first), (ROOT / "lib" / "rowfold.h").read_text(), count=1)


# rowfold(1)


def command_page() -> str:
    """rowfold(1)."""
    top = parser()
    (commands,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    lines = [*header("rowfold", 1, "run, explain and measure a linear layer fused with what follows it")]
    lines += [".SH SYNOPSIS", ".B rowfold", "\\-\\-help | \\-\\-version"]
    for name in commands.choices:
        lines += [".br", f".B rowfold {name}", "[\\fIoption\\fR ...]" + _positionals(commands.choices[name])]
    lines += [".SH DESCRIPTION", escaped(f"{top.description} A chain is text: linear, then operators joined by |.")]
    lines += [
        escaped(
            "The operators are in doc/operators.md of the documentation; rowfold explain says what becomes of each."
        )
    ]
    lines += [".SH COMMANDS"]
    for name, command in commands.choices.items():
        lines += _command(name, command)
    lines += [".SH EXIT STATUS"]
    for status, meaning in (
        ("0", "All went well."),
        ("1", "Something could not be done; one sentence on standard error says what and why."),
        ("2", "The command line is wrong."),
        ("130", "Interrupted. rowfold run leaves no half file; after another signal the status is 128 and its number."),
    ):
        lines += [".TP", status, escaped(meaning)]
    lines += [".SH ENVIRONMENT"]
    for variable, meaning in ENVIRONMENT_TABLE.findall((ROOT / "doc" / "command-line.md").read_text()):
        lines += [".TP", f".B {variable}", escaped(meaning.replace("`", ""))]
    lines += [".SH SEE ALSO", ".BR librowfold (3)"]
    return "\n".join(lines) + "\n"


def _positionals(command: argparse.ArgumentParser) -> str:
    named = [action.metavar or action.dest for action in command._actions if not action.option_strings]
    return "".join(f" \\fI{name}\\fR" for name in named)


def _command(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    yield f".SS {name}{_positionals(command)}"
    yield escaped(command.description or "").replace("\n\n", "\n.PP\n")
    for action in command._actions:
        if not isinstance(action, argparse._HelpAction):
            yield from (".TP", _flags(action), escaped(_help(action)))
    title, _, examples = (command.epilog or "").partition("\n")
    if examples:
        yield from (".PP", escaped(title.capitalize()))
        yield from verbatim(re.sub("^  ", "", examples, flags=re.MULTILINE))


def _flags(action: argparse.Action) -> str:
    value = ""
    if action.nargs != 0:
        choices = None if action.choices is None else "|".join(map(str, action.choices))
        metavar = str(action.metavar or choices or action.dest.upper().replace("_", "-"))
        value = f"\\fI{escaped(metavar)}\\fR"
    if not action.option_strings:
        return value
    flags = ", ".join(f"\\fB{escaped(flag)}\\fR" for flag in action.option_strings)
    return f"{flags} {value}".rstrip()


def _help(action: argparse.Action) -> str:
    return action.help or ""


# librowfold(3)

COMMENT = re.compile(r"/\*(.*?)\*/\n?", re.DOTALL)
NAME = re.compile(
    r"\b(rf_\w+)\(|^(?:typedef )?(?:enum|struct) (rf_\w+)|#define (RF_\w+)|^typedef struct (rf_\w+)", re.MULTILINE
)


def library_page(name: str, header_file: str, module: str, summary: str) -> str:
    """A header: its comments as text and its declarations as they are."""
    source = library_header() if header_file == "rowfold.h" else (ROOT / "lib" / header_file).read_text()
    intro = COMMENT.match(source, source.index("\n") + 1)
    assert intro, f"{header_file} begins with its licence and its manual"
    body = source[source.index('extern "C" {') :].partition("#endif\n")[2].rpartition("#ifdef __cplusplus")[0]
    lines = [*header(name, 3, summary)]
    lines += [
        ".SH SYNOPSIS",
        f".B #include <{Path(header_file).name}>",
        ".PP",
        f"cc \\fIprogram.c\\fR $(pkg\\-config \\-\\-cflags \\-\\-libs {module})",
    ]
    lines += [".SH DESCRIPTION", *_text(intro[1].partition("\n")[2])]
    lines += [".SH FUNCTIONS AND TYPES"]
    for block in re.split(r"\n\n+", body.strip("\n")):
        lines += _block(block)
    lines += [".SH SEE ALSO", ".BR rowfold (1)" if module == "rowfold" else ".BR librowfold (3)"]
    return "\n".join(lines) + "\n"


def _block(block: str) -> Iterator[str]:
    """A comment, if the block begins with one, and its declarations."""
    comment = COMMENT.match(block)
    code = block[comment.end() :] if comment else block
    names = dict.fromkeys(name for found in NAME.findall(code) for name in found if name)
    if names:
        yield ".SS " + ", ".join(names)
    if code.strip():
        yield from verbatim(code)
    if comment:
        yield ".PP"
        yield from _text(comment[1])


def _text(comment: str) -> Iterator[str]:
    """The text of a comment: paragraphs filled, indented lines as they are, and points as a list."""
    lines = [re.sub(r"^ ?\* ?", "", line).rstrip() for line in comment.strip("\n").split("\n")]
    lines[0] = lines[0].strip()
    code: list[str] = []
    for line in [*lines, ""]:
        if line.startswith("    "):
            code.append(line[4:])
            continue
        if code:
            yield from (*verbatim("\n".join(code)), ".PP")
            code = []
        if line.startswith(" - "):
            yield from (".IP \\(bu 2", escaped(line[3:]))
        elif line.strip():
            yield escaped(line.strip())
        elif comment.strip():
            yield ".PP"


def files() -> dict[Path, str]:
    """Where each file goes, and its text."""
    what = "a linear layer, elementwise operators and a row reduction as one operation"
    made = {
        "rowfold.1": command_page(),
        "librowfold.3": library_page("librowfold", "rowfold.h", "rowfold", what),
        "librowfold_mpi.3": library_page(
            "librowfold_mpi", "mpi/rowfold_mpi.h", "rowfold_mpi", "one layer on the processes of an MPI communicator"
        ),
        "librowfold_nccl.3": library_page(
            "librowfold_nccl", "nccl/rowfold_nccl.h", "rowfold_nccl", "one layer on the ranks of an NCCL communicator"
        ),
    }
    # A paragraph that ends where a list or a section begins is none.
    pages = {ROOT / "doc" / name: re.sub(r"(\n\.PP)+\n(?=\.)", "\n", text) for name, text in made.items()}
    return {ROOT / "lib" / "rowfold.h": library_header(), **pages}


if __name__ == "__main__":
    for path, text in files().items():
        # What is as it was keeps its date: all of CUDA is compiled anew after rowfold.h.
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
