"""Shell completion: run directories, shipped configs, tasks and settings; else the shell's files.

typer executes the command to complete a word, so heavy modules are imported inside the functions.
A shell must never show a traceback: anything that cannot be read is not offered.
"""

from pathlib import Path
from typing import Any

Offers = list[tuple[str, str]]
"""Words that complete what was typed, each with a meaning or an empty text."""


def complete_runs(incomplete: str) -> Offers:
    """Offer run directories in runs/ and in the folder that is being typed."""
    from germline.record.run_paths import run_directories
    from germline.types import GermlineError

    offers: dict[str, str] = {}
    for place in {Path(incomplete).parent if incomplete else Path("runs"), Path("runs")}:
        try:
            offers |= {str(path): "" for path in run_directories(place)}
        except (GermlineError, OSError):
            continue
    return _matching(offers, incomplete)


def complete_models(incomplete: str) -> Offers:
    """Offer models: nano and run directories."""
    return _matching({"nano": "the embedded model"}, incomplete) + complete_runs(incomplete)


def complete_configs(incomplete: str) -> Offers:
    """Offer the names of shipped configs."""
    from germline.config.config_files import config_summary, preset_configs

    names = {name: config_summary(path) for name, path in preset_configs().items()}
    return _matching(names, incomplete)


def complete_tasks(incomplete: str) -> Offers:
    """Offer the short names of tasks."""
    from germline import registry
    from germline.config.reference import meaning_of

    kinds = {kind: meaning_of(one) for kind, one in registry.sections("task").items()}
    return _matching(kinds, incomplete)


def complete_settings(incomplete: str, ctx: Any = None) -> Offers:
    """Offer settings with their default, and those of a sweep."""
    from germline.config.reference import OPEN, REQUIRED, override_names

    offers = {}
    for entry in override_names():
        default = entry.setting.default
        value = "" if default in (OPEN, REQUIRED) else default
        offers[f"{entry.name}={value}"] = entry.setting.meaning
    if ctx and ctx.info_name == "sweep":
        from germline.studies.sweep_options import SweepOptions

        for name, field in SweepOptions.model_fields.items():
            offers[f"sweep.{name}="] = field.description or ""
    return _matching(offers, incomplete)


def _matching(offers: dict[str, str], incomplete: str) -> Offers:
    return [(word, meaning) for word, meaning in offers.items() if word.startswith(incomplete)]
