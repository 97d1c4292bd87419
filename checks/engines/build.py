"""Build the environments in which the real engines run, each in a folder of its own.

    python -m checks.engines.build        # `make engines`

There is one environment per engine, with exact versions, because engines and germline's own tools
need different ones. Its name contains a digest of its contents and it is outside the clone, so all
clones and CI runs on a machine share it. A file that is written last marks it as complete.

Progress is printed to stderr; stdout gets one line per environment, for a shell:

    export GERMLINE_VLLM_PYTHON=/root/.cache/germline/engines/vllm-0123456789ab/bin/python

With these variables, `tests/engines_real/` is run and not skipped. Settings are environment
variables:

    GERMLINE_ENGINES_DIR   folder; default ${XDG_CACHE_HOME:-~/.cache}/germline/engines
    GERMLINE_SKIP_ENGINES  engines to neither build nor test: `vllm`, `sglang`, both, or `all`
    PIP_ARGS               further arguments of pip, as in the Makefile
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).parent
WHOLE = "whole"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")


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

    def digest(self) -> str:
        """Name all it is made of, this interpreter included."""
        digest = hashlib.sha256(f"{platform.python_version()} {platform.machine()}\n".encode())
        beside = sorted(self.beside.rglob("*.py")) if self.beside else []
        for path in (self.requirements, *beside):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:12]


RECIPES = (
    Recipe("vllm", HERE / "vllm.txt", "vllm"),
    Recipe(
        "sglang", HERE / "sglang.txt", "sglang.srt.entrypoints.http_server", HERE / "sglang_on_cpu"
    ),
)


def main(recipes: Sequence[Recipe] = RECIPES) -> int:
    """Build missing environments; print the variables that name all of them."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get("GERMLINE_ENGINES_DIR") or Path(cache) / "germline" / "engines")
    for recipe in recipes:
        if {recipe.name, "all"} & {*os.environ.get(recipe.skipped_by, "").split(",")}:
            _say(f"{recipe.name}: SKIPPED by {recipe.skipped_by}, so it is not tested here")
            continue
        try:
            python = built(recipe, folder.absolute())
        except subprocess.CalledProcessError as error:
            _say(f"{error.stdout}\n{recipe.name} cannot be built here: {error}")
            _say(f"To go on without testing it, set {recipe.skipped_by}={recipe.name}.")
            return 1
        print(f"export GERMLINE_{recipe.name.upper()}_PYTHON={shlex.quote(str(python))}")
    return 0


def built(recipe: Recipe, folder: Path) -> Path:
    """Return the interpreter of an environment, which is built unless it is complete."""
    home = folder / f"{recipe.name}-{recipe.digest()}"
    python = home / "bin" / "python"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(home.with_name(f"{home.name}.lock")):
        if (home / WHOLE).exists():
            _say(f"{recipe.name}: {home}")
            return python
        _say(f"{recipe.name}: building {home} (minutes, and gigabytes, once)")
        shutil.rmtree(home, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(home))
        extra = shlex.split(os.environ.get("PIP_ARGS", ""))
        _run(str(python), *PIP, "-r", str(recipe.requirements), *extra)
        if recipe.beside:
            (packages,) = home.glob("lib/python*/site-packages")
            shutil.copytree(recipe.beside, packages, dirs_exist_ok=True)
        _run(str(python), "-c", f"import {recipe.module}")
        (home / WHOLE).touch()
    return python


def _run(*command: str) -> None:
    subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)


def _say(line: str) -> None:
    """Print a line of progress to stderr; stdout is for the shell."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
