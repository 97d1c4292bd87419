"""Run directories of earlier versions: settings under their old names, and implied settings.

A run keeps the names and the behavior of the version that wrote it: reading never rewrites
`run.json`. Two tables list the changes. `RENAMED` has the settings whose names or values have
changed. `IMPLIED` has the settings that an earlier version did not have, if their default differs
from the behavior of that version.
"""

from collections.abc import Mapping
from typing import Any

RENAMED: dict[str, dict[str, str]] = {
    "": {"batch": "batch_size", "cell": "microbatch", "choices": "prompt_search"},
    "engine": {
        "centre": "master_device",
        "stacked": "members_per_batch",
        "steps": "cuda_graphs",
        "patience_s": "retry_timeout_s",
        "start_s": "startup_timeout_s",
        "memory_share": "gpu_memory_utilization",
    },
    "fleet": {
        "least": "min_engines",
        "by_value": "send_offsets",
        "room_s": "placement_timeout_s",
        "hung_after": "hang_factor",
        "hung_after_s": "hang_timeout_s",
    },
    "space": {"start": "init_adapter"},
    "method": {"keep": "ensemble_size", "explore": "exploration"},
    "prompt_search": {
        "shots": "few_shot",
        "rate": "learning_rate",
        "floor": "min_probability",
    },
}
"""Present name of a section ("": the config itself) -> old name of a setting -> present name."""

VALUES: dict[tuple[str, str], dict[object, object]] = {
    ("engine", "cuda_graphs"): {"plain": False, "fixed": True},
    ("shaping", "kind"): {"centred_ranks": "centered_ranks"},
}
"""(section, setting) -> old value -> present value."""

IMPLIED: dict[str, dict[str, object]] = {"inprocess": {"members_per_batch": 1}}
"""Kind of engine -> settings that describe its behavior before they existed."""


def migrate(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run directory in the names of this version.

    Args:
        recorded: the resolved config that `run.json` holds.
    """
    config = _renamed("", recorded)
    for name, section in config.items():
        if isinstance(section, Mapping):
            config[name] = _renamed(name, section)
        elif not isinstance(section, list):
            config[name] = VALUES.get((name, "kind"), {}).get(section, section)
    engine = config.get("engine")
    if isinstance(engine, Mapping) and isinstance(engine.get("kind"), str):
        config["engine"] = {**IMPLIED.get(engine["kind"], {}), **engine}
    return config


def migrate_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of `generations.jsonl` with the prompt options under their present names."""
    if "choices" not in row:
        return row
    names = RENAMED["prompt_search"]
    options = {names.get(name, name): by_option for name, by_option in row["choices"].items()}
    others = {name: value for name, value in row.items() if name != "choices"}
    return {**others, "option_probabilities": options}


def new_name(setting: str) -> str | None:
    """Return the present name of a setting by its old one, such as `engine.centre`, or None."""
    section, _, name = setting.rpartition(".")
    section = RENAMED[""].get(section, section)
    present = f"{section}.{RENAMED.get(section, {}).get(name, name)}".removeprefix(".")
    return present if present != setting else None


def _renamed(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    names = RENAMED.get(section, {})
    renamed = {names.get(name, name): value for name, value in values.items()}
    for name, value in renamed.items():
        known = VALUES.get((section, name), {})
        if isinstance(value, str) and value in known:
            renamed[name] = known[value]
    return renamed
