"""Whether the prompts of a run go through the chat template of the model."""

from germline.config import Config
from germline.config.tasks import PythonFile
from germline.tasks import make_task
from germline.types import GermlineError


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
