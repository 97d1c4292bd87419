"""Count what a reader of germline has to hold in the head: lines, words, commands, files entered.

    python -m checks.sizes

The last figures come from one run of nano on arithmetic with `sys.setprofile` in every thread:
how many files of the package building the run and one generation enter, and how often calls cross
from one file to another.
"""

import inspect
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import typer

ROOT = Path(__file__).parents[1]
PACKAGE = str(ROOT / "germline")


def lines(*folders: str) -> tuple[int, int]:
    """Return the lines and the number of Python files below some folders."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files), len(files)


def words() -> int:
    """Return the words of the documentation that people write: README and committed pages."""
    command = ["git", "ls-files", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    pages = [ROOT / name for name in listed.stdout.split()]
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages if page.exists())


def commands() -> tuple[int, int]:
    """Return the number of commands, subcommands counted each, and of their options."""
    from germline.cli.application import app

    def walk(command: Any) -> Iterator[Any]:
        for inner in getattr(command, "commands", {}).values():
            yield from walk(inner)
        if not hasattr(command, "commands"):
            yield command

    found = list(walk(typer.main.get_command(app)))
    options = [
        parameter
        for command in found
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.hidden
    ]
    return len(found), len(options)


class Entered:
    """The files that calls enter while it is active, and the calls from one file to another."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.functions: set[tuple[str, str]] = set()
        self.crossings = 0

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or of a class
            return
        self.files.add(code.co_filename)
        self.functions.add((code.co_filename, code.co_qualname))
        caller = frame.f_back
        if caller is not None:
            origin = caller.f_code.co_filename
            self.crossings += origin.startswith(PACKAGE) and origin != code.co_filename

    def during(self, action: Callable[[], Any]) -> Any:
        """Call a function and count."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)
        try:
            return action()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def entered() -> tuple[Entered, Entered]:
    """Return what building a run of nano enters, and what its second generation enters."""
    import germline

    values = {
        "task": "arithmetic",
        "generations": 3,
        "batch_size": 4,
        "strategy": {"population": 8, "sigma": 0.01, "learning_rate": 0.01},
        "held_out": {"every": 3, "examples": 4},
    }

    def begin(name: str) -> Any:
        return germline.train(germline.load_config(values), Path(folder, name))

    building, generation = Entered(), Entered()
    with tempfile.TemporaryDirectory() as folder:
        for _ in begin("first"):  # imports what the second one is measured with
            pass
        training = building.during(lambda: begin("second"))
        steps = iter(training)
        next(steps)
        generation.during(lambda: next(steps))
        for _ in steps:
            pass
    return building, generation


def main() -> None:
    """Print the table."""
    count, files = lines("germline")
    print(f"package: {count:,} lines, {files} files")
    print(f"tests: {lines('tests')[0]:,} lines, {lines('tests')[1]} files")
    print(f"benchmarks and checks: {lines('benchmarks', 'checks')[0]:,} lines")
    print(f"documentation: {words():,} words")
    count, options = commands()
    print(f"commands: {count}, options: {options}")
    building, generation = entered()
    print(f"building enters {len(building.files)} files")
    print(
        f"one generation enters {len(generation.files)} files and {len(generation.functions)} "
        f"functions, and calls cross between files {generation.crossings:,} times"
    )


if __name__ == "__main__":
    main()
