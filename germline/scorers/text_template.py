"""The text that a reward model scores: prompt and response in a template."""

import re
from collections.abc import Mapping

from germline.config.scorers import TEMPLATES
from germline.types import Example

_FIELD = re.compile(r"\{(\w+)\}")


def fill_template(template: str, values: Mapping[str, str]) -> str:
    """Write the values into a template, or one of `TEMPLATES` by its name; other braces stay."""
    text = TEMPLATES.get(template, template)
    # In one pass: a prompt or response may itself contain the name of a field in braces.
    return _FIELD.sub(lambda mark: values.get(mark.group(1), mark.group()), text)


def full_prompt(example: Example) -> str:
    """Return the prompt, after the messages before it, one per line."""
    return "\n".join([*(content for _, content in example.context), example.prompt])


def scored_text(template: str, response: str, example: Example) -> str:
    """Return the text to score for a response."""
    return fill_template(template, {"prompt": full_prompt(example), "response": response})
