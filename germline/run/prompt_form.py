"""Whether prompts go through the chat template of the model, as in the run that trained it."""

import json
from pathlib import Path
from typing import Any

from germline.config import Config
from germline.config.row_tasks import PythonFile
from germline.record import RunDirectory
from germline.tasks import make_task
from germline.types import GermlineError

EXPORT_FACTS = "germline.json"
"""The file in a folder of exported weights that says what they were trained on."""


def asks_chats(directory: RunDirectory | None, config: Config) -> bool:
    """Return whether prompts for weights go through the chat template.

    Those for a run do as its own did, and so do those for weights that it exported. Those for any
    other model or PEFT adapter do.

    Args:
        directory: of the run; None for a model or an adapter.
        config: of the run, or that with which the model is loaded.
    """
    if directory:
        return sends_chats(config)
    folder = Path(getattr(config.space, "init_adapter", None) or config.model)
    return bool(read_export_facts(folder).get("chat", True))


def read_export_facts(folder: Path) -> dict[str, Any]:
    """Return what an export says about its run; empty for a folder that germline did not write."""
    try:
        facts = json.loads((folder / EXPORT_FACTS).read_bytes())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def sends_chats(config: Config) -> bool:
    """Return whether the task of a config sends its prompts through the chat template.

    A Python file decides this itself, so it is loaded; where it is gone or broken, the answer is
    that of most tasks.
    """
    section = config.task
    if not isinstance(section, PythonFile) or section.chat is not None:
        return section.sends_chats
    try:
        return make_task(section).examples("train")[0].chat
    except GermlineError:
        return section.sends_chats
