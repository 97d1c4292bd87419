"""Build the environments in which the real engines run, each in a folder of its own.

    python -m checks.engines.build        # `make engines`

There is one environment per engine, with exact versions, because engines and germline's own tools
need different ones. Its name contains a digest of its contents and it is outside the clone, so all
clones and CI runs on a machine share it. A file that is written last marks it as complete; an
environment without this file is rebuilt.

Progress is printed to stderr; stdout gets one line per environment, for a shell:

    export GERMLINE_VLLM_PYTHON=/root/.cache/germline/engines/vllm-0123456789ab/bin/python

With these variables, `tests/engines_real/` is run and not skipped. Settings are environment
variables:

    GERMLINE_ENGINES_DIR   folder; default ${XDG_CACHE_HOME:-~/.cache}/germline/engines
    GERMLINE_SKIP_ENGINES  engines to neither build nor test: `vllm`, `sglang`, both, or `all`
    PIP_ARGS               further arguments of pip, as in the Makefile
"""

import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
WHOLE = "whole"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
LAST_LINES = 15


@dataclass(frozen=True)
class Recipe:
    """What an environment is made of.

    Attributes:
        requirements: exact versions of everything in it; their dependencies are not looked at.
        module: what must be importable in the end.
        beside: a folder whose files are copied to the installed packages.
        skipped_by: the environment variable that names recipes to skip.
    """

    name: str
    requirements: Path
    module: str
    beside: Path | None = None
    skipped_by: str = "GERMLINE_SKIP_ENGINES"

    @property
    def variable(self) -> str:
        """The environment variable that names its interpreter."""
        return f"GERMLINE_{self.name.upper()}_PYTHON"

    def digest(self) -> str:
        """Name all it is made of, this interpreter included."""
        found = hashlib.sha256(f"{platform.python_version()} {platform.machine()}\n".encode())
        beside = sorted(self.beside.rglob("*.py")) if self.beside else []
        for path in (self.requirements, *beside):
            found.update(path.read_bytes())
        return found.hexdigest()[:12]


RECIPES = (
    Recipe("vllm", HERE / "vllm.txt", "vllm"),
    Recipe(
        "sglang", HERE / "sglang.txt", "sglang.srt.entrypoints.http_server", HERE / "sglang_on_cpu"
    ),
)


class NotBuilt(Exception):
    """An environment cannot be built here; the message has the reason and a remedy."""


def main(recipes: Sequence[Recipe] = RECIPES) -> int:
    """Build missing environments; print the variables that name all of them."""
    try:
        skipped = skips(os.environ.get(recipes[0].skipped_by, ""), recipes)
        for recipe in recipes:
            if recipe.name in skipped:
                say(f"{recipe.name}: SKIPPED by {recipe.skipped_by}, so it is not tested here")
                continue
            python = ensure(recipe, root(os.environ), shlex.split(os.environ.get("PIP_ARGS", "")))
            print(f"export {recipe.variable}={shlex.quote(str(python))}")
    except NotBuilt as error:
        say(f"\n{error}")
        return 1
    return 0


def skips(wanted: str, recipes: Sequence[Recipe]) -> frozenset[str]:
    """Return the engines that are not built.

    Raises:
        NotBuilt: a name is not that of an engine.
    """
    names = frozenset(recipe.name for recipe in recipes)
    asked = frozenset(part.strip() for part in wanted.split(",") if part.strip())
    if asked == {"all"}:
        return names
    if unknown := sorted(asked - names):
        raise NotBuilt(
            f"{recipes[0].skipped_by}={wanted} names {', '.join(unknown)}, which is no engine: "
            f"use {', '.join(sorted(names))} or all"
        )
    return asked


def root(environment: Mapping[str, str]) -> Path:
    """Return the folder of all environments."""
    if given := environment.get("GERMLINE_ENGINES_DIR"):
        return Path(given).absolute()
    cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "germline" / "engines"


def ensure(recipe: Recipe, folder: Path, pip_arguments: Sequence[str] = ()) -> Path:
    """Return the interpreter of an environment, which is built unless it is complete.

    Raises:
        NotBuilt: it cannot be built on this machine.
    """
    home = folder / f"{recipe.name}-{recipe.digest()}"
    python = home / "bin" / "python"
    with _alone(home):
        if (home / WHOLE).exists():
            say(f"{recipe.name}: {home}")
            return python
        say(f"{recipe.name}: building {home} (minutes, and gigabytes, once)")
        shutil.rmtree(home, ignore_errors=True)
        _run(recipe, [sys.executable, "-m", "venv", str(home)])
        _run(recipe, [str(python), *PIP, "-r", str(recipe.requirements), *pip_arguments])
        if recipe.beside:
            (packages,) = home.glob("lib/python*/site-packages")
            shutil.copytree(recipe.beside, packages, dirs_exist_ok=True)
        _run(recipe, [str(python), "-c", f"import {recipe.module}"])
        (home / WHOLE).touch()
    return python


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    """Let one process at a time build an environment; the others wait for it."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with home.with_name(f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(recipe: Recipe, command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = "\n".join(f"    {line}" for line in done.stdout.splitlines()[-LAST_LINES:])
        raise NotBuilt(
            f"THE ENVIRONMENT OF {recipe.name.upper()} CANNOT BE BUILT HERE.\n"
            f"    {shlex.join(command)}\nended with status {done.returncode} and printed\n{last}\n"
            "The CPU build of torch may need PIP_ARGS='--extra-index-url "
            "https://download.pytorch.org/whl/cpu'. To go on without testing this engine, set "
            f"{recipe.skipped_by}={recipe.name}."
        )


def say(line: str) -> None:
    """Print a line of progress to stderr; stdout is for the shell."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
