"""Which verifiers, tasksets and word lists are installed, and what to type where one is missing.

Nothing here imports verifiers. Nothing is ever installed: the names of the hub are not those of
PyPI, where packages of other people have the same names.

TextArena's games, which tasksets play (Wordle, Hangman, and others), make their dictionary again
for every game, from lists that come with it and from NLTK's data: 1.2 s and an attempt to download,
where a game takes milliseconds. Tried with textarena 0.7.4.
"""

import functools
import importlib.util
import sys
from importlib import metadata
from pathlib import Path

from germline.errors import GermlineError

REQUIRED = "verifiers>=0.4,<0.5"
_INSTALL = "pip install 'germline[verifiers]'"


def check_version() -> None:
    """Check that the right version of verifiers is installed."""
    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        raise GermlineError(
            f"task.kind=verifiers needs the library `verifiers`: {_INSTALL} (in an environment of "
            "its own where another package needs openai>=3)"
        ) from None
    if not version.startswith("0.4."):
        raise GermlineError(f"task.kind=verifiers needs {REQUIRED}, found {version}: {_INSTALL}")


def module_of(env: str) -> str:
    """Return the module of a taskset: `owner/some-name@1.2` is the module `some_name`."""
    name = Path(env).stem if env.endswith(".py") else env.rsplit("/", 1)[-1].partition("@")[0]
    return name.replace("-", "_").lower()


def check_installed(env: str) -> None:
    """Check that the module of a taskset is there."""
    if env.endswith(".py"):
        if not Path(env).is_file():
            raise GermlineError(f"task.env: there is no file {env!r}; name a Python file (.py)")
        if module_of(env) != Path(env).stem:  # another module of that name may be there
            raise GermlineError(f"task.env={env}: rename the file to {module_of(env)}.py")
        return
    module = module_of(env)
    if importlib.util.find_spec(module) or _is_shipped(module):
        return
    owner = env.rpartition("/")[0] or "OWNER"
    name = env.rsplit("/", 1)[-1]
    raise GermlineError(
        f"task.env={env}: there is no module {module!r}, and germline installs nothing: type "
        f"`prime env install {owner}/{name}` for an environment of the hub (uv tool install "
        "prime), install the package that has it, or name a Python file (.py)"
    )


def import_error(env: str, error: BaseException) -> GermlineError:
    """Return what is wrong with a taskset whose module cannot be imported."""
    causes = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:  # verifiers hides the module
        causes.append(cause)
    missing = [str(one.name) for one in causes if isinstance(one, ModuleNotFoundError) and one.name]
    absent = [name for name in missing if name.rpartition(".")[2] != module_of(env)]
    if not absent:
        return GermlineError(
            f"task.env={env} is no module with a vf.Taskset of verifiers v1: "
            f"{type(error).__name__}: {error}"
        )
    return GermlineError(
        f"task.env={env} imports {absent[0]!r}, which is not installed: install the package that "
        f"has it for the Python that runs germline ({sys.executable})"
    )


def _is_shipped(module: str) -> bool:
    """Whether a taskset comes with verifiers."""
    spec = importlib.util.find_spec("verifiers")
    places = spec.submodule_search_locations if spec else None
    return any((Path(place) / "v1" / "tasksets" / module).is_dir() for place in places or ())


def keep_dictionary() -> None:
    """Make the dictionary once per process, if a taskset has imported TextArena.

    Called before the first game is made: its module takes the name from `word_lists`.
    """
    if "textarena" not in sys.modules:
        return
    from textarena.envs.utils import word_lists

    if isinstance(word_lists.EnglishDictionary, type):
        word_lists.EnglishDictionary = functools.cache(word_lists.EnglishDictionary)
