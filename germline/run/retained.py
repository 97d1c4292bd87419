"""Scores of tasks and texts that training should not make the model worse at (`retained`).

A task is scored as held-out examples are: the center answers through the fleet, and the task's own
graders grade. Of a text, the tokens of passages are scored after the tokens before them: their mean
negative log-probability, in nats per token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from germline.config import Config
from germline.config.config_files import model_source
from germline.config.run_config import Retained
from germline.evaluation import score_center
from germline.evaluation.held_out import score_of_values
from germline.fleet import Fleet
from germline.protocols import ScoringGroup, Task
from germline.scorers.scored_graders import Graders
from germline.types import Completion, Decoding, Example, GermlineError, HeldOutScore

PASSAGE, GIVEN = 96, 8
"""Tokens of a passage of a text, and how many of these are given and not scored."""

NATS = "nats per token"
"""The metric of a text."""


@dataclass(frozen=True)
class RetainedTask:
    """Held-out examples of a task, with its own graders; scored after every so many updates."""

    every: int
    task: Task
    examples: Sequence[Example]
    graders: Graders
    decoding: Decoding

    def score(self, fleet: Fleet, updates: int) -> HeldOutScore:
        """Score the center's answers."""
        evaluate = partial(fleet.evaluate_center, graders=self.graders)
        return score_center(evaluate, self.task, self.examples, self.decoding, updates)[0]


@dataclass(frozen=True)
class RetainedText:
    """Passages of a text, the tokens that are given and those that are scored, likewise."""

    every: int
    prompts: Sequence[Example]
    texts: Sequence[Completion]

    def score(self, fleet: Fleet, updates: int) -> HeldOutScore:
        """Measure the center's nats per token of every passage."""
        (scored,) = fleet.score([ScoringGroup([None], self.prompts, self.texts)])
        nats = [-math.fsum(tokens) / len(tokens) for tokens in scored]
        return score_of_values(updates, NATS, nats, higher_is_better=False)


def read_text(section: Retained, config: Config) -> RetainedText:
    """Cut a text into passages of tokens.

    Raises:
        GermlineError: the file cannot be read or is too short, or the engine has no tokenizer.
    """
    assert section.text is not None
    if config.engine.has_own_model:
        raise GermlineError(
            f"text: engine.kind={config.engine.kind} has no tokenizer: use a task, or "
            "engine.kind=inprocess"
        )
    from germline.engines.pretrained import load_tokenizer  # it imports torch

    try:
        text = section.text.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GermlineError(f"text: {section.text} cannot be read as UTF-8 text: {error}") from None
    tokenizer = load_tokenizer(model_source(config.model))[0]
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    starts = range(0, max(1, len(ids) - PASSAGE + 1), PASSAGE)
    passages = [ids[at : at + PASSAGE] for at in starts[: section.examples]]
    if len(passages[0]) <= GIVEN:
        raise GermlineError(
            f"text: {section.text} has {len(ids)} tokens; give a text of {PASSAGE} or more"
        )
    return RetainedText(
        config.held_out.every * section.every,
        [Example(0, "", "", chat=False, token_ids=tuple(one[:GIVEN])) for one in passages],
        [Completion("", tuple(one[GIVEN:]), "length", GIVEN) for one in passages],
    )
