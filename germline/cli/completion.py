"""What the shell offers at the Tab key: run directories, configs, tasks and settings.

typer runs the command itself to ask for words, so everything heavy is imported inside. A shell
must never see a traceback: what cannot be read is not offered.
"""

import os
from collections.abc import Iterator
from pathlib import Path

MODELS = {"nano": "the embedded model"}


def complete_runs(incomplete: str) -> list[tuple[str, str]]:
    """Offer run directories: those in runs/, or in the folder that is being typed."""
    from germline.types import GermlineError

    found: dict[str, str] = {}
    folder = Path(incomplete).parent if incomplete else Path("runs")
    for place in (folder, Path("runs")):
        try:
            found |= dict(_runs(place))
        except (GermlineError, OSError):
            continue
    return _fitting(found, incomplete) or complete_folders(incomplete)


def complete_models(incomplete: str) -> list[tuple[str, str]]:
    """Offer what can play: nano and run directories."""
    return _fitting(MODELS, incomplete) + complete_runs(incomplete)


def complete_folders(incomplete: str) -> list[tuple[str, str]]:
    """Offer folders."""
    return _files(incomplete, suffixes=())


def complete_configs(incomplete: str) -> list[tuple[str, str]]:
    """Offer config files, and the names of shipped configs."""
    from germline.config.presets import config_summary, preset_configs

    names = {name: config_summary(path) for name, path in preset_configs().items()}
    return _files(incomplete, (".yaml", ".yml")) + _fitting(names, incomplete)


def complete_tasks(incomplete: str) -> list[tuple[str, str]]:
    """Offer the short names of tasks, or files that are tasks."""
    from germline.config.reference import list_kinds

    return _fitting(list_kinds("task"), incomplete) or _files(incomplete, (".py", ".jsonl"))


def complete_settings(incomplete: str) -> list[tuple[str, str]]:
    """Offer `strategy.sigma=0.005`: settings with their default, and after `=` their choices.

    Where no setting begins so, offer files of settings.
    """
    from germline.config.reference import OPEN, REQUIRED, override_names

    name, equals, typed = _split_by_bash() or incomplete.partition("=")
    if equals:
        choices = [one for e in override_names() if e.name == name for one in e.setting.choices]
        kept = incomplete.removesuffix(typed).lstrip("=")
        return [(f"{kept}{one}", "") for one in dict.fromkeys(choices) if one.startswith(typed)]
    offers = {}
    for entry in override_names():
        default = entry.setting.default
        word = "" if default in (OPEN, REQUIRED) else default
        offers[f"{entry.name}={word}"] = entry.setting.meaning
    return _fitting(offers, incomplete) or _files(incomplete, (".yaml", ".yml"))


def complete_evaluation_settings(incomplete: str) -> list[tuple[str, str]]:
    """Offer the settings `germline eval` takes."""
    from germline.cli.evaluate import EVALUATION_SETTINGS

    wanted = ("task.", *EVALUATION_SETTINGS)
    return [
        (word, meaning)
        for word, meaning in complete_settings(incomplete)
        if word.startswith(wanted)
    ]


def _split_by_bash() -> tuple[str, str, str] | None:
    """Put together a word that bash cut at its equals sign: `space`, `=`, `lo`.

    bash counts the three as words, and replaces only the one under the cursor.
    """
    words = os.environ.get("COMP_WORDS", "").split()
    here = int(os.environ.get("COMP_CWORD", "0") or 0)
    cut = [*words[:here], words[here] if here < len(words) else ""][-3:]
    if here < 2 or "=" not in cut[-2:]:
        return None
    return (cut[-2], "=", "") if cut[-1] == "=" else (cut[-3], "=", cut[-1])


def _runs(folder: Path) -> Iterator[tuple[str, str]]:
    from germline.record.list_runs import RunSummary, list_runs

    for one in list_runs(folder):
        if isinstance(one, RunSummary):
            yield str(one.path), f"{one.task}, {one.done}/{one.total}, {one.state}"


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Offer folders, and files of these suffixes, one level at a time."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    words = [f"{path}/" for path in entries if path.is_dir() and not path.name.startswith(".")]
    words += [str(path) for path in entries if path.suffix in suffixes and path.is_file()]
    return _fitting(dict.fromkeys(words, ""), incomplete)


def _fitting(offers: dict[str, str], incomplete: str) -> list[tuple[str, str]]:
    return [(word, meaning) for word, meaning in offers.items() if word.startswith(incomplete)]
