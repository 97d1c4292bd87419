"""Wrap messages between words for a terminal; commands, paths and intervals are never broken.

A terminal breaks a line that is longer than it is wide in the middle of a word. A pipe or a file
gets the message as it is.
"""

import re
import shutil
import sys

import typer

COMMANDS = "train|resume|export|eval|elo|report|generate|probe|check|list|new|doctor|serve"
UNBROKEN = re.compile(
    # a text in backticks, a percentage, an interval, a command in brackets or that ends the line
    r"(?:`[^`\n]*`|\d+ %|\[[^][\n]{,30}\]|\((?:germline|pip|hf) [^()\n]*\)|"
    rf"germline (?:{COMMANDS}) [^`()\n]*$|\S)+"  # or any other word
)


def wrap_words(text: str, width: int) -> str:
    """Break the lines that are longer than `width` between words, and keep their indent."""
    return "\n".join(
        line if len(line) <= width else _wrap_line(line, width) for line in text.split("\n")
    )


def fits_stdout(length: int) -> bool:
    """Tell whether a line of so many characters fits the terminal; a pipe takes any."""
    return not sys.stdout.isatty() or length <= shutil.get_terminal_size().columns


def print_stdout(message: str) -> None:
    """Print a message on stdout, wrapped for a terminal."""
    if not fits_stdout(len(message)):
        message = wrap_words(message, shutil.get_terminal_size().columns)
    typer.echo(message)


def print_stderr(message: str, color: str | None = None) -> None:
    """Print a message on stderr, wrapped for a terminal."""
    if sys.stderr.isatty():
        message = typer.style(wrap_words(message, shutil.get_terminal_size().columns), fg=color)
    # Not `typer.echo`, which writes past the stderr of a live view, onto its last line.
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()


def _wrap_line(line: str, width: int) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    lines = [indent]
    for word in UNBROKEN.findall(line):
        is_first = lines[-1] == indent
        if not is_first and len(lines[-1]) + 1 + len(word) > width:
            lines.append(indent)
            is_first = True
        lines[-1] += word if is_first else f" {word}"
    return "\n".join(lines)
