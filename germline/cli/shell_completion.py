"""Shell completion: run directories, configs, tasks and settings.

typer executes the command to complete a word, so heavy modules are imported inside the functions.
A shell must never show a traceback: anything that cannot be read is not offered.
"""

import os
from pathlib import Path

Offers = list[tuple[str, str]]
"""Words that complete what was typed, each with a meaning or an empty text."""


def complete_runs(incomplete: str) -> Offers:
    """Offer run directories in runs/ and in the folder that is being typed, or folders."""
    from germline.record.run_paths import run_directories
    from germline.types import GermlineError

    offers: dict[str, str] = {}
    for place in {Path(incomplete).parent if incomplete else Path("runs"), Path("runs")}:
        try:
            offers |= {str(path): "" for path in run_directories(place)}
        except (GermlineError, OSError):
            continue
    return _matching(offers, incomplete) or complete_folders(incomplete)


def complete_models(incomplete: str) -> Offers:
    """Offer models: nano and run directories."""
    return _matching({"nano": "the embedded model"}, incomplete) + complete_runs(incomplete)


def complete_folders(incomplete: str) -> Offers:
    """Offer folders."""
    return _files(incomplete)


def complete_configs(incomplete: str) -> Offers:
    """Offer config files, and the names of shipped configs."""
    from germline.config.config_files import config_summary, preset_configs

    names = {name: config_summary(path) for name, path in preset_configs().items()}
    return _files(incomplete, ".yaml", ".yml") + _matching(names, incomplete)


def complete_tasks(incomplete: str) -> Offers:
    """Offer the short names of tasks, or files that are tasks."""
    from germline import registry
    from germline.config.reference import meaning_of

    kinds = {kind: meaning_of(one) for kind, one in registry.sections("task").items()}
    return _matching(kinds, incomplete) or _files(incomplete, ".py", ".jsonl")


def complete_settings(incomplete: str) -> Offers:
    """Offer settings with their default, after `=` their choices, else files of settings."""
    from germline.config.reference import OPEN, REQUIRED, override_names

    name, equals, typed = _split_by_bash() or incomplete.partition("=")
    if equals:
        choices = [word for e in override_names() if e.name == name for word in e.setting.choices]
        kept = incomplete.removesuffix(typed).lstrip("=")
        return [(f"{kept}{word}", "") for word in dict.fromkeys(choices) if word.startswith(typed)]
    offers = {}
    for entry in override_names():
        default = entry.setting.default
        value = "" if default in (OPEN, REQUIRED) else default
        offers[f"{entry.name}={value}"] = entry.setting.meaning
    return _matching(offers, incomplete) or _files(incomplete, ".yaml", ".yml")


def _split_by_bash() -> tuple[str, str, str] | None:
    """Join a word that bash splits at its equals sign into three words: `space`, `=`, `lo`."""
    words = os.environ.get("COMP_WORDS", "").split()
    here = int(os.environ.get("COMP_CWORD", "0") or 0)
    cut = [*words[:here], words[here] if here < len(words) else ""][-3:]
    if here < 2 or "=" not in cut[-2:]:
        return None
    return (cut[-2], "=", "") if cut[-1] == "=" else (cut[-3], "=", cut[-1])


def _files(incomplete: str, *suffixes: str) -> Offers:
    """Offer folders, and files of these suffixes, one level at a time."""
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    words = [f"{path}/" for path in entries if path.is_dir() and not path.name.startswith(".")]
    words += [str(path) for path in entries if path.suffix in suffixes and path.is_file()]
    return _matching(dict.fromkeys(words, ""), incomplete)


def _matching(offers: dict[str, str], incomplete: str) -> Offers:
    return [(word, meaning) for word, meaning in offers.items() if word.startswith(incomplete)]
