"""Scores of tasks and texts that training should not make the model worse at (`retained`).

A task is scored as held-out examples are: the center answers through the fleet, and the task's own
graders grade. Of a text, the tokens of passages are scored after the tokens before them: their mean
negative log-probability, in nats per token.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from germline.config import Config
from germline.config.run_config import Retained
from germline.evaluation import score_center
from germline.evaluation.held_out import score_of_values
from germline.nano import model_source
from germline.protocols import Fleet, ScoringGroup, Task
from germline.scorers.scored_graders import Graders
from germline.types import Completion, Decoding, Example, GermlineError, HeldOutScore

PASSAGE, GIVEN = 96, 8
"""Tokens of a passage of a text, and how many of these are given and not scored."""

NATS = "nats per token"
"""The metric of a text."""


class RetainedTask:
    """A task with its graders; see the module."""

    def __init__(self, task: Task, count: int, graders: Graders, decoding: Decoding) -> None:
        self._task = task
        self._examples = task.examples("test")[:count]
        self._graders = graders
        self._decoding = decoding

    def score(self, fleet: Fleet, updates: int) -> HeldOutScore:
        """Score the center's answers to the held-out examples."""
        evaluate = partial(fleet.evaluate_center, graders=self._graders)
        return score_center(evaluate, self._task, self._examples, self._decoding, updates)[0]

    def redirect_output(self, path: Path) -> None:
        """Append what the graders print to a file."""
        self._graders.redirect_output(path)

    def close(self) -> None:
        """End the graders."""
        self._graders.close()


class RetainedText:
    """Passages of a text, `[passages][tokens]`; see the module."""

    def __init__(self, passages: Sequence[Sequence[int]]) -> None:
        self._prompts = [
            Example(place, "", "", chat=False, token_ids=tuple(passage[:GIVEN]))
            for place, passage in enumerate(passages)
        ]
        self._texts = [
            Completion("", tuple(passage[GIVEN:]), "length", GIVEN) for passage in passages
        ]

    def score(self, fleet: Fleet, updates: int) -> HeldOutScore:
        """Measure the center's nats per token of every passage."""
        (scored,) = fleet.score([ScoringGroup([None], self._prompts, self._texts)])
        nats = [-math.fsum(tokens) / len(tokens) for tokens in scored]
        return score_of_values(updates, NATS, nats, higher_is_better=False)

    def redirect_output(self, path: Path) -> None:
        """Do nothing: nothing is graded."""

    def close(self) -> None:
        """Do nothing: nothing was started."""


class RetainedScores:
    """Everything that `retained` names; scores what is due.

    Args:
        sections: by name.
        every: updates between two held-out scores.
        parts: what each of them is.
    """

    def __init__(
        self,
        sections: Mapping[str, Retained],
        every: int,
        parts: Mapping[str, RetainedTask | RetainedText],
    ) -> None:
        self._sections = sections
        self._every = every
        self._parts = parts

    def score(self, fleet: Fleet, updates: int, *, is_end: bool) -> dict[str, HeldOutScore]:
        """Return the scores after so many updates; at the start and the end, those of all."""
        return {
            name: part.score(fleet, updates)
            for name, part in self._parts.items()
            if is_end or updates % (self._every * self._sections[name].every) == 0
        }

    def redirect_output(self, path: Path) -> None:
        """Append what the graders print to a file."""
        for part in self._parts.values():
            part.redirect_output(path)

    def close(self) -> None:
        """End the graders."""
        for part in self._parts.values():
            part.close()


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

    text = _text_of(section.text)
    tokenizer = load_tokenizer(model_source(config.model))[0]
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    starts = range(0, max(1, len(ids) - PASSAGE + 1), PASSAGE)
    passages = [ids[at : at + PASSAGE] for at in starts[: section.examples]]
    if len(passages[0]) <= GIVEN:
        raise GermlineError(
            f"text: {section.text} has {len(ids)} tokens; give a text of {PASSAGE} or more"
        )
    return RetainedText(passages)


def _text_of(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GermlineError(
            f"text: {path} cannot be read as UTF-8 text (relative paths start at "
            f"{Path.cwd()}): {error}"
        ) from None
