"""The grader pool and the scorers of a task as one: both parts of a rubric in every grade.

Grading and scoring run at the same time, and concurrently with generation. A reward is missing as
soon as a score of nonzero weight is missing; its reason names the scorer.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from germline.config.scorers import ScorerBase
from germline.example import Transcript
from germline.graders.batch_queue import BatchQueue
from germline.graders.pool import GraderPool
from germline.registry import create
from germline.scorers import Item, NotScoredError, Score, Scorer, missing
from germline.types import Example, Grade


@dataclass(frozen=True)
class ScorerPart:
    """A scorer, its weight, and the queue that makes its batches."""

    name: str
    weight: float
    scorer: Scorer
    queue: BatchQueue[Item, Score]


class ScoredGraders:
    """Grades completions by a pool and by scorers, which have the name of their part.

    Scorers get the `text_of` a completion, such as without its thinking.
    """

    def __init__(
        self, graders: GraderPool, configs: Mapping[str, ScorerBase], text_of: Callable[[str], str]
    ) -> None:
        self._graders = graders
        self.max_turns: int | None = None
        self._text_of = text_of
        self._parts: list[ScorerPart] = []
        try:
            for name, config in configs.items():
                self._parts.append(start_scorer(f"task.scorers.{name}", name, config))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "ScoredGraders":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def submit(
        self, texts: Sequence[str | Transcript], examples: Sequence[Example]
    ) -> Future[list[Grade]]:
        """Grade completions in the background; text i answers example i."""
        scored = [
            (self._text_of(str(text)), example)
            for text, example in zip(texts, examples, strict=True)
        ]
        graded = self._graders.submit(texts, examples)
        scores = [part.queue.submit(scored) for part in self._parts]
        return _gathered(
            [graded, *scores],
            lambda results: [self._grade(*row) for row in zip(*results, strict=True)],
        )

    def redirect_output(self, path: Path) -> None:
        """Append what the graders print from now on to a file instead of standard error."""
        self._graders.redirect_output(path)

    def close(self) -> None:
        """Cancel what is not graded yet, end the workers, and release the scorers."""
        self._graders.close()
        for part in self._parts:
            part.queue.close()
            part.scorer.close()

    def _grade(self, grade: Grade, *scores: Score) -> Grade:
        reward = grade.reward
        values = dict(grade.parts)
        reasons = [] if grade.failure is None else [grade.failure]
        for part, score in zip(self._parts, scores, strict=True):
            values[part.name] = score.value
            if part.weight:
                reward += part.weight * score.value
            if score.missing is not None:
                reasons.append(f"{part.name}: {score.missing}")
        return Grade(reward, values, "; ".join(reasons) or None)


Graders = GraderPool | ScoredGraders
"""What grades the completions of a run."""


def start_scorer(setting: str, name: str, config: ScorerBase) -> ScorerPart:
    """Make a scorer and its queue; `setting` is its section in errors."""
    scorer: Scorer = create("scorer", config, setting)

    def score(items: list[Item]) -> Sequence[Score]:
        try:
            return scorer.score(items)
        except NotScoredError as error:
            return [missing(str(error))] * len(items)

    queue = BatchQueue([score] * scorer.concurrency, scorer.batch_size, f"scorer-{name}")
    return ScorerPart(name, config.weight, scorer, queue)


def _gathered(
    futures: Sequence["Future[Any]"], combine: Callable[[list[Any]], list[Grade]]
) -> "Future[list[Grade]]":
    """Return a future of all results; the first error is its error."""
    gathered: Future[list[Grade]] = Future()

    def one_is_done(_: "Future[Any]") -> None:
        if not all(future.done() for future in futures):
            return
        with suppress(InvalidStateError):  # two threads may both see the last result
            try:
                gathered.set_result(combine([future.result() for future in futures]))
            except CancelledError:
                gathered.cancel()
            except Exception as error:  # noqa: BLE001 - any error must reach the caller that waits
                gathered.set_exception(error)

    for future in futures:
        future.add_done_callback(one_is_done)
    return gathered
