"""Elo ratings of runs and models: a judge compares their completions of the same prompts.

Every two models meet on every prompt, in both orders. A pair is decided only if the judge prefers
the same completion both times; if its verdict changes with the order, it abstains. An abstention is
no half win for each, as a tie would be, and a reply without a verdict is no loss: both are counted
and left out of the ratings. Equal completions are not sent to the judge.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from germline.config import TaskBase
from germline.engines.served.http_client import RequestRefused
from germline.evaluation.bradley_terry import Rating, Verdict, rate_models
from germline.record.atomic_files import check_writable
from germline.record.metrics_rows import rollout_text
from germline.run.build_parts import scored_text_of
from germline.run.inference import SourceEvaluation, open_evaluation
from germline.run.judgments import Judgment, JudgmentFile, Pair, Request
from germline.scorers.batch_queue import BatchQueue
from germline.scorers.pairwise_judge import JudgeReply, PairwiseJudge
from germline.scorers.text_template import full_prompt
from germline.scorers.types import NotScoredError
from germline.types import Example, GermlineError, HeldOutScore, Split


@dataclass(frozen=True)
class EloSettings:
    """What is compared, and how.

    Attributes:
        task: None: that of the first source, which is a run.
        generations: of every run that is a source; None is its newest.
        limit: only the first so many examples.
        overrides: settings of engine, microbatch and graders.
        anchor: the model whose rating is 1000; default: the first one.
        seed: of the bootstrap intervals.
        out: the file of judgments; default: in the run directory or the working directory.
    """

    task: TaskBase | None = None
    generations: Sequence[int | Literal["best"] | None] = (None,)
    split: Split = "test"
    limit: int | None = None
    overrides: Sequence[str] = ()
    anchor: str | None = None
    seed: int = 0
    out: Path | None = None


@dataclass(frozen=True)
class ComparedModel:
    """A model that is compared: its score on the task, and its text for each example."""

    name: str
    score: HeldOutScore
    texts: Mapping[int, str]


@dataclass(frozen=True)
class EloResult:
    """The ratings, and what they rest on.

    Attributes:
        anchor: the model whose rating is 1000.
        ratings: best first.
        scores: on the task, by model.
        judgments: judged pairs, prompt by prompt.
        identical: pairs of equal completions, which are not judged.
        prompts: that the models completed.
        asked: requests that were sent; the file had the other replies.
        file: of the judgments.
    """

    anchor: str
    ratings: Sequence[Rating]
    scores: Mapping[str, HeldOutScore]
    judgments: Sequence[Judgment]
    identical: int
    prompts: int
    asked: int
    file: Path

    def count(self, outcome: str) -> int:
        """Return the number of judged pairs with this outcome."""
        return sum(one.outcome == outcome for one in self.judgments)

    @property
    def first_preferred(self) -> float | None:
        """Share of the verdicts that prefer the completion that is given first."""
        verdicts = [reply.preferred for reply in self._replies() if reply.preferred is not None]
        return verdicts.count("first") / len(verdicts) if verdicts else None

    @property
    def failures(self) -> list[tuple[str, int]]:
        """Reasons why replies have no verdict, the most frequent first."""
        return Counter(one.failure for one in self._replies() if one.failure).most_common()

    @property
    def has_no_verdict(self) -> bool:
        """Whether the judge was asked, and gave no verdict in any reply."""
        return bool(self.judgments) and self.first_preferred is None

    def first_texts(self, count: int) -> list[str]:
        """Return the first different texts that the judge wrote."""
        texts = dict.fromkeys(one.text for one in self._replies() if one.text is not None)
        return list(texts)[:count]

    def _replies(self) -> Iterator[JudgeReply]:
        return (reply for judgment in self.judgments for reply in judgment.replies)


def compare_models(
    sources: Sequence[str],
    judge: PairwiseJudge,
    settings: EloSettings,
    on_progress: Callable[[str], None] = lambda _: None,
) -> EloResult:
    """Generate completions with every model, let a judge compare them, and rate the models.

    Args:
        sources: runs and models.
        judge: is closed at the end.
        settings: see there.
        on_progress: called with what is being done.

    Raises:
        GermlineError: a source cannot be loaded, or the judge stops answering; what it judged is
            in the file.
    """
    with closing(judge):
        evaluations = _open_sources(sources, settings)
        names = list(evaluations)
        anchor = names[0] if settings.anchor is None else settings.anchor
        if anchor not in names:
            raise GermlineError(f"elo: --anchor={anchor} is not compared: use {' or '.join(names)}")
        first = evaluations[names[0]]
        folder = first.directory.path if first.directory else Path()
        file = settings.out or folder / f"elo-{first.task.name}-{settings.split}.jsonl"
        check_writable(file)
        judgments = JudgmentFile(file)
        models = []
        for name, evaluation in evaluations.items():
            on_progress(f"generating completions of {name}")
            models.append(_compared(name, evaluation))
        pairs, identical = _pairs(models, first.examples, judge)
        asked = _judge_pairs(pairs, judge, judgments, on_progress)
    judged = [judgments.judgment(pair) for pair in pairs]
    return EloResult(
        anchor,
        rate_models(names, list(_verdicts(judged)), anchor, settings.seed),
        {one.name: one.score for one in models},
        judged,
        identical,
        len(first.examples),
        asked,
        file,
    )


def _open_sources(sources: Sequence[str], settings: EloSettings) -> dict[str, SourceEvaluation]:
    """Find what is compared, by name.

    Raises:
        GermlineError: it cannot be found, is given twice, or is alone.
    """
    found: dict[str, SourceEvaluation] = {}
    task = settings.task
    for source in sources:
        is_run = (Path(source) / "run.json").exists()
        for generation in settings.generations if is_run else (None,):
            name = source if generation is None else f"{source}@{generation}"
            if name in found:
                raise GermlineError(f"elo: {name} is given twice: name each model once")
            found[name] = open_evaluation(
                source, task, settings.split, settings.limit, settings.overrides, generation
            )
            task = found[name].config.task
    if len(found) < 2:
        raise GermlineError(
            f"elo: {' '.join(found)} has nothing to be compared with: name another run or model, "
            "or generations of a run, such as -g -1 -g best"
        )
    return found


def _compared(name: str, evaluation: SourceEvaluation) -> ComparedModel:
    score, evaluated = evaluation.run(scorers=False)
    text_of = scored_text_of(evaluation.config.task)
    texts = {rollout.example: text_of(rollout_text(rollout)) for rollout in evaluated.rollouts}
    return ComparedModel(name, score, texts)


def _pairs(
    models: Sequence[ComparedModel], examples: Sequence[Example], judge: PairwiseJudge
) -> tuple[list[Pair], int]:
    """Return what the judge compares, prompt by prompt, and the number of equal completions.

    The order within a pair is that of names, so it does not depend on the order of arguments.
    """
    pairs = []
    identical = 0
    by_name = sorted(models, key=lambda one: one.name)
    for example, (one, two) in itertools.product(examples, itertools.combinations(by_name, 2)):
        first, second = one.texts[example.index], two.texts[example.index]
        if first == second:
            identical += 1
            continue
        prompt = full_prompt(example)
        requests = (judge.request(prompt, first, second), judge.request(prompt, second, first))
        pairs.append(Pair(example, (one.name, two.name), (first, second), requests))
    return pairs, identical


def _judge_pairs(
    pairs: Sequence[Pair],
    judge: PairwiseJudge,
    judgments: JudgmentFile,
    on_progress: Callable[[str], None],
) -> int:
    """Let the judge compare the pairs; each is in the file as soon as it has both replies.

    Returns:
        The number of requests that were sent.

    Raises:
        GermlineError: the judge stops answering.
    """
    queue = BatchQueue[Request, JudgeReply](
        lambda batch: [judge.ask(request) for request in batch], 1, judge.concurrency, "judge"
    )
    pairs_of: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        for digest in pair.digests:
            pairs_of[digest].append(pair)
    kept = sum(judgments.write(pair) for pair in pairs)
    missing = judgments.missing(pairs)
    asked = {queue.submit([request]): digest for digest, request in missing.items()}

    def keep(future: "Future[list[JudgeReply]]") -> int:
        judgments.add(asked[future], future.result()[0])
        return sum(judgments.write(pair) for pair in pairs_of[asked.pop(future)])

    try:
        for future in as_completed(list(asked)):
            kept += keep(future)
            on_progress(f"{kept} of {len(pairs)} pairs judged")
    except (NotScoredError, RequestRefused) as error:
        queue.close()  # cancels what is not answered yet
        answered = [one for one in asked if not one.cancelled() and one.exception() is None]
        kept += sum(map(keep, answered))
        raise GermlineError(
            f"elo: {error}; {kept} of {len(pairs)} pairs are judged and kept in {judgments.path}: "
            "the same command goes on from there"
        ) from None
    finally:
        queue.close()
    return len(missing)


def _verdicts(judgments: Sequence[Judgment]) -> Iterator[Verdict]:
    """Yield who won the pairs that are decided."""
    for judgment in judgments:
        if judgment.winner is not None:
            (loser,) = {*judgment.pair.models} - {judgment.winner}
            yield Verdict(judgment.pair.example.index, judgment.winner, loser)
