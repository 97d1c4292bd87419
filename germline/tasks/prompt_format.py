"""Format prompts: with a template, and with few-shot examples of the training split before them.

All members get the same few-shot examples, in a seeded order; an example is never its own few-shot
example. The template is applied to the few-shot examples as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from germline import noise
from germline.types import Example, GermlineError, PromptVariant


class PromptFormatter:
    """Rewrites examples as a choice asks for it.

    Args:
        train: the training examples, those to show among them.
        run_seed: of the order in which they are shown.
        most: the most that are ever asked for.

    Raises:
        GermlineError: there are not enough solved ones to show.
    """

    def __init__(
        self,
        train: Sequence[Example],
        run_seed: int,
        most: int,
        setting: str = "prompt_search.few_shot",
    ) -> None:
        solved = [one for one in train if one.answer]
        if most and len(solved) <= most:
            raise GermlineError(
                f"{setting} asks for up to {most} solved examples before a prompt, "
                f"but the training split has {len(solved)} with an answer to show, and an example "
                "never shows itself: ask for fewer, or give the rows an `answer`"
            )
        order = noise.epoch_permutation(run_seed, "shots", 0, len(solved)) if most else ()
        # One more than asked for, as the example itself may be among them.
        self._solved = [solved[int(place)] for place in order[: most + 1]]

    def format_prompt(self, example: Example, choice: PromptVariant) -> Example:
        """Return an example with the prompt a member with this choice is given."""
        prompt = _in_template(example, choice)
        shown = [_solved(one, choice) for one in self._shown(example, choice.few_shot or 0)]
        return replace(example, prompt="\n\n".join([*shown, prompt]))

    def _shown(self, example: Example, count: int) -> Iterator[Example]:
        asked = example.context, example.prompt
        others = (one for one in self._solved if (one.context, one.prompt) != asked)
        return islice(others, count)


def _in_template(example: Example, choice: PromptVariant) -> str:
    if choice.template is None:
        return example.prompt
    return choice.template.replace("{prompt}", example.prompt)


def _solved(example: Example, choice: PromptVariant) -> str:
    """Return a prompt with its answer: on a new line for a chat, else in the same line."""
    prompt = _in_template(example, choice)
    if example.chat:
        return f"{prompt}\n{example.answer}"
    gap = "" if prompt[-1:].isspace() or example.answer[:1].isspace() else " "
    return f"{prompt}{gap}{example.answer}"
