"""Scorers that judge held-out completions only: what is trained never sees their scores.

A run that is trained on a reward model or a judge may learn what that judge likes and nobody else
does. Another judge, beside it, shows it.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from germline.config.scorers import ScorerBase
from germline.record.metrics_rows import rollout_text
from germline.scorers.scored_graders import ScorerPart, start_scorer
from germline.scorers.types import Score
from germline.types import Example, GermlineError, Rollout

log = logging.getLogger(__name__)

TRIED = 4
"""Completions that a scorer is tried on before a run begins."""


@dataclass(frozen=True, slots=True)
class ScorerValues:
    """The scores of some completions by one scorer.

    Attributes:
        values: one per example; NaN where it is missing.
    """

    higher_is_better: bool
    values: tuple[float, ...]


class HeldOutScorers:
    """Scores held-out completions; the scorers work at the same time.

    Args:
        configs: the scorers by name.
        text_of: the text that scorers get of a completion, such as without its thinking.

    Raises:
        GermlineError: a scorer cannot be made.
    """

    def __init__(self, configs: Mapping[str, ScorerBase], text_of: Callable[[str], str]) -> None:
        self._configs = configs
        self._text_of = text_of
        self._parts: list[ScorerPart] = []
        try:
            for name, config in configs.items():
                self._parts.append(start_scorer(_setting(name), name, config))
        except BaseException:
            self.close()
            raise

    def score(
        self, rollouts: Sequence[Rollout], examples: Sequence[Example]
    ) -> dict[str, ScorerValues]:
        """Score the completion of each example, by scorer; a warning says what is missing."""
        texts = {rollout.example: self._text_of(rollout_text(rollout)) for rollout in rollouts}
        answers = [texts[example.index] for example in examples]
        scores = self._scores(answers, examples, self._parts)
        for name, given in scores.items():
            missing = [score.missing for score in given if score.missing is not None]
            if missing:
                log.warning(
                    "%s: %d of %d held-out completions have no score: %s",
                    *(_setting(name), len(missing), len(given), missing[0]),
                )
        return {
            part.name: ScorerValues(part.weight >= 0, tuple(one.value for one in scores[part.name]))
            for part in self._parts
        }

    def check(
        self, examples: Sequence[Example], known: Mapping[str, ScorerBase] | None = None
    ) -> None:
        """Try every scorer on a few answers.

        Args:
            examples: held out.
            known: scorers of the run so far, which are not tried again.

        Raises:
            GermlineError: one scores none of them.
        """
        some = list(islice(examples, TRIED))
        before = known or {}
        tried = [one for one in self._parts if before.get(one.name) != self._configs[one.name]]
        texts = [one.answer or one.prompt for one in some]
        for name, given in self._scores(texts, some, tried).items():
            if given and all(score.missing is not None for score in given):
                raise GermlineError(
                    f"{_setting(name)} (kind={self._configs[name].kind}) scored none of the "
                    f"{len(given)} texts that were tried: {given[0].missing}"
                )

    def close(self) -> None:
        """Cancel what waits, and release the scorers."""
        for part in self._parts:
            part.queue.close()
            part.scorer.close()

    def _scores(
        self, texts: Sequence[str], examples: Sequence[Example], parts: Sequence[ScorerPart]
    ) -> dict[str, list[Score]]:
        items = list(zip(texts, examples, strict=True))
        pending = {part.name: part.queue.submit(items) for part in parts}
        return {name: future.result() for name, future in pending.items()}


def _setting(name: str) -> str:
    return f"held_out.scorers.{name}"
