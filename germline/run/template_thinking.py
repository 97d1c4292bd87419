"""Whether a model's chat template opens the thinking block in the prompt."""

import copy

from germline.config import Config
from germline.protocols import Task
from germline.tasks.thinking import is_open, strip_thinking
from germline.types import GermlineError


def with_opened_thinking(config: Config, task: Task) -> Task:
    """Return the task of a config, which strips thinking as the model's chat template begins it.

    Where the template ends a prompt with `<think>`, a completion without `</think>` is thinking to
    its end.
    """
    if not config.task.strip_thinking or config.engine.kind == "toy":
        return task
    example = next(iter(task.examples("train")), None)
    if example is None or not example.chat:
        return task
    from germline.engines.pretrained import load_tokenizer
    from germline.engines.prompt_batch import encode_prompt
    from germline.nano import model_source

    try:
        tokenizer, _ = load_tokenizer(model_source(config.model))
        prompt = str(tokenizer.decode(encode_prompt(tokenizer, example)))
    except GermlineError:
        return task  # loading the model refuses it
    changed = copy.copy(task)
    tag = config.task.thinking_tag
    strip_thinking(changed, tag, is_opened=is_open(prompt, tag))
    return changed
