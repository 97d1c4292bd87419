"""Which verifiers and word lists are installed, and what to type where a taskset is missing.

Nothing here imports verifiers. Nothing is ever installed: the names of the hub are not those of
PyPI, where packages of other people have the same names.

TextArena's games, which tasksets play (Wordle, Hangman, and others), make their dictionary again
for every game, from lists that come with it and from NLTK's data: 1.2 s and an attempt to download,
where a game takes milliseconds. Tried with textarena 0.7.4.
"""

import functools
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


def check_file(env: str) -> None:
    """Check that the file of a taskset is there, where it is one."""
    if env.endswith(".py") and not Path(env).is_file():
        raise GermlineError(f"task.env: there is no file {env!r}; name a Python file (.py)")
    if env.endswith(".py") and module_of(env) != Path(env).stem:  # another may have that name
        raise GermlineError(f"task.env={env}: rename the file to {module_of(env)}.py")


def import_error(env: str, error: BaseException) -> GermlineError:
    """Return what is wrong with a taskset whose module cannot be imported."""
    while hidden := error.__cause__ or error.__context__:  # verifiers hides the missing module
        error = hidden
    return GermlineError(
        f"task.env={env} is no module with a vf.Taskset of verifiers v1 ({type(error).__name__}: "
        f"{error}), and germline installs nothing: type `prime env install OWNER/NAME` for an "
        "environment of the hub (uv tool install prime), install the package that is missing for "
        f"{sys.executable}, or name a Python file (.py)"
    )


def keep_dictionary() -> None:
    """Make the dictionary once per process, if a taskset has imported TextArena.

    Called before the first game is made: its module takes the name from `word_lists`.
    """
    if "textarena" not in sys.modules:
        return
    from textarena.envs.utils import word_lists

    if isinstance(word_lists.EnglishDictionary, type):
        word_lists.EnglishDictionary = functools.cache(word_lists.EnglishDictionary)
