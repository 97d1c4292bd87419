"""Whether prompts go through the chat template of the model, as in the run that trained it."""

from pathlib import Path

from germline.config import Config
from germline.config.tasks import PythonFile
from germline.record import RunDirectory
from germline.tasks import make_task
from germline.types import GermlineError

CARD = "README.md"
"""The model card in a folder of exported weights."""

SENT_RAW = "The run sent its prompts as they are, without the chat template"
"""A sentence of the model card."""


def asks_chats(directory: RunDirectory | None, config: Config) -> bool:
    """Return whether prompts for weights go through the chat template.

    Those for a run do as its own did. Those for a model or a PEFT adapter do unless it is a folder
    whose model card says that the run sent its prompts as they are.

    Args:
        directory: of the run; None for a model or an adapter.
        config: of the run, or that with which the model is loaded.
    """
    if directory:
        return sends_chats(config)
    folder = Path(getattr(config.space, "init_adapter", None) or config.model)
    try:
        return SENT_RAW not in (folder / CARD).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return True


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
