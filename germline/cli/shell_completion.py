"""Shell completion: run directories, configs, tasks and settings.

typer executes the command to complete a word, so heavy modules are imported inside the functions.
A shell must never show a traceback: anything that cannot be read is not offered.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

MODELS = {"nano": "the embedded model"}


def complete_runs(incomplete: str) -> list[tuple[str, str]]:
    """Offer run directories in runs/ and in the folder that is being typed."""
    from germline.types import GermlineError

    offers: dict[str, str] = {}
    folder = Path(incomplete).parent if incomplete else Path("runs")
    for place in (folder, Path("runs")):
        try:
            offers |= dict(_runs(place))
        except (GermlineError, OSError):
            continue
    return _matching(offers, incomplete) or complete_folders(incomplete)


def complete_models(incomplete: str) -> list[tuple[str, str]]:
    """Offer models: nano and run directories."""
    return _matching(MODELS, incomplete) + complete_runs(incomplete)


def complete_folders(incomplete: str) -> list[tuple[str, str]]:
    """Offer folders."""
    return _files(incomplete, suffixes=())


def complete_configs(incomplete: str) -> list[tuple[str, str]]:
    """Offer config files, and the names of shipped configs."""
    from germline.config.config_files import config_summary, preset_configs

    names = {name: config_summary(path) for name, path in preset_configs().items()}
    return _files(incomplete, (".yaml", ".yml")) + _matching(names, incomplete)


def complete_tasks(incomplete: str) -> list[tuple[str, str]]:
    """Offer the short names of tasks, or files that are tasks."""
    from germline.config.reference import list_kinds

    return _matching(list_kinds("task"), incomplete) or _files(incomplete, (".py", ".jsonl"))


def complete_settings(incomplete: str) -> list[tuple[str, str]]:
    """Offer `strategy.sigma=0.005`: settings with their default, and after `=` their choices.

    If no setting matches, offer files of settings.
    """
    from germline.config.reference import OPEN, REQUIRED, override_names

    name, equals, typed = _split_by_bash() or incomplete.partition("=")
    if equals:
        choices = [word for e in override_names() if e.name == name for word in e.setting.choices]
        kept = incomplete.removesuffix(typed).lstrip("=")
        return [(f"{kept}{word}", "") for word in dict.fromkeys(choices) if word.startswith(typed)]
    offers = {}
    for entry in override_names():
        default = entry.setting.default
        word = "" if default in (OPEN, REQUIRED) else default
        offers[f"{entry.name}={word}"] = entry.setting.meaning
    return _matching(offers, incomplete) or _files(incomplete, (".yaml", ".yml"))


def complete_settings_of(accepted: tuple[str, ...]) -> Callable[[str], list[tuple[str, str]]]:
    """Return a completer that offers the settings that start with one of these prefixes."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        offers = complete_settings(incomplete)
        return [(word, meaning) for word, meaning in offers if word.startswith(accepted)]

    return complete


def _split_by_bash() -> tuple[str, str, str] | None:
    """Join a word that bash splits at its equals sign: `space`, `=`, `lo`.

    bash treats the three parts as words, and replaces only the part under the cursor.
    """
    words = os.environ.get("COMP_WORDS", "").split()
    here = int(os.environ.get("COMP_CWORD", "0") or 0)
    cut = [*words[:here], words[here] if here < len(words) else ""][-3:]
    if here < 2 or "=" not in cut[-2:]:
        return None
    return (cut[-2], "=", "") if cut[-1] == "=" else (cut[-3], "=", cut[-1])


def _runs(folder: Path) -> Iterator[tuple[str, str]]:
    from germline.record.list_runs import RunSummary, SeedStudySummary, list_runs

    for run in list_runs(folder):
        if isinstance(run, SeedStudySummary):
            yield str(run.path), f"{run.seeds} run seeds, {run.finished} trained, {run.state}"
        elif isinstance(run, RunSummary):
            yield str(run.path), f"{run.task}, {run.done}/{run.total}, {run.state}"


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Offer folders, and files of these suffixes, one level at a time."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    words = [f"{path}/" for path in entries if path.is_dir() and not path.name.startswith(".")]
    words += [str(path) for path in entries if path.suffix in suffixes and path.is_file()]
    return _matching(dict.fromkeys(words, ""), incomplete)


def _matching(offers: dict[str, str], incomplete: str) -> list[tuple[str, str]]:
    return [(word, meaning) for word, meaning in offers.items() if word.startswith(incomplete)]
