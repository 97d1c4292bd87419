"""Errors of a config: the setting, pydantic's message, and what was meant."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from germline.config.base import expected_words, found_of, message_of
from germline.config.config_files import TASK_SUFFIXES
from germline.config.reference import group_at, override_names, types_at
from germline.errors import count_of
from germline.registry import did_you_mean, sections, unknown_kind

MOST_LINES = 10
"""Largest number of mistakes that are shown; more usually mean another kind of file."""

OTHER_NAMES = {
    "strategy.learning_rate": "lr",
    "strategy.sigma": "noise_scale noise_std std",
    "strategy.population": "pop_size popsize population_size num_generations",
    "batch_size": "per_device_train_batch_size train_batch_size",
    "task.max_new_tokens": "max_tokens max_completion_length",
    "generations": "epochs steps max_steps iterations num_iterations",
    "model": "model_name model_name_or_path",
    "--out": "output_dir",
    "germline train CONFIG seeds=0..4": "seeds",
    "germline sweep CONFIG --over SPACE": "sweep",
}
"""Settings -> the names they have in PyTorch, TRL, vLLM and other ES libraries."""


def format_errors(error: ValidationError, values: Mapping[str, Any]) -> str:
    """Return one line per mistake in these values."""
    # A setting of several types is refused by each of them.
    mistakes: dict[str, list[dict[str, Any]]] = {}
    for one in error.errors(include_url=False):
        mistakes.setdefault(_setting(one, values), []).append(dict(one))
    lines = [_line(setting, these) for setting, these in mistakes.items()]
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"and {count_of(len(lines) - MOST_LINES, 'more mistakes')}"]
    return "\n        ".join(lines)


def _setting(error: Mapping[str, Any], here: Any) -> str:
    """Return the setting of a mistake; its place also holds the names of kinds and types."""
    parts: list[str] = []
    place = error["loc"]
    is_name = error["type"] in ("missing", "extra_forbidden", "invalid_key")
    for number, part in enumerate(place, start=1):
        # A setting and its kind may have one name, as in `strategy: {nes: ...}`.
        if isinstance(here, Mapping) and part in here and place[number:] != (part,):
            parts.append(str(part))
            here = here[part]
        elif isinstance(part, int) or (is_name and number == len(place)):
            parts.append(str(part))
    return ".".join(parts)


def _line(setting: str, mistakes: list[dict[str, Any]]) -> str:
    first = mistakes[0]
    if first["type"] == "extra_forbidden":
        return f"{setting}: unknown setting{_unknown(setting, first)}"
    if first["type"] == "union_tag_invalid":
        kind = first["ctx"]["tag"]
        ends = ", ".join(TASK_SUFFIXES)
        files = f"; a task file ends in {ends}" if setting == "task" and "." in kind else ""
        return f"{setting}: {unknown_kind(group_at(setting.split('.')), kind)}{files}"
    text = f"{setting}: {', or: '.join(dict.fromkeys(map(message_of, mistakes)))}".removeprefix(
        ": "
    )
    words = [*sections(group_at(setting.split(".")))]
    for one in mistakes:
        words += expected_words(one)
    return text + found_of(first, words)


def _unknown(setting: str, error: Mapping[str, Any]) -> str:
    """Suggest what an unknown setting may mean, and list the settings of its section."""
    *outer, last = error["loc"]
    place = setting.removesuffix(str(last)).rstrip(".")
    kind = sections(group_at(place.split("."))).get(str(outer[-1])) if outer else None
    here = [kind] if kind else types_at(place.split("."))
    known = sorted({name for one in here for name in getattr(one, "model_fields", ())})
    name = setting.rpartition(".")[2]
    kinds = [kind for entry in override_names() if entry.name == setting for kind in entry.kinds]
    of_others = [setting for setting, names in OTHER_NAMES.items() if name in names.split()]
    named = [entry.name for entry in override_names() if entry.name.rpartition(".")[2] == name]
    meant = [*dict.fromkeys(named or of_others)]
    section, dot, below = str(last).partition(".")
    if dot:
        hint = f" in a file: write it as a section, {section}: {{{below}: ...}}"
    elif kinds:
        hint = f" of this kind, but of kind={', '.join(kinds)}"
    else:
        hint = "" if of_others else did_you_mean(name, known)
        hint = hint or (f" (did you mean {' or '.join(meant)}?)" if meant else "")
    return f"{hint}; known here: {', '.join(known)}"
