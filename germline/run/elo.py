"""Elo ratings of runs and models: a judge compares their completions of the same prompts.

Every two models meet on every prompt, in both orders. A pair is decided only if the judge prefers
the same completion both times; if its verdict changes with the order, it abstains. An abstention is
no half win for each, as a tie would be, and a reply without a verdict is no loss: both are counted
and left out of the ratings. Equal completions are not sent to the judge.

Every reply is a line of a file, written as soon as it is there. A request that the file has a reply
for is not sent again, so an interrupted comparison goes on where it ended, and another model or
more prompts cost only what is new. A request is identified by its content: the judge's model and
settings, the prompt and both completions. What the service refused or did not answer is sent again.
"""

import hashlib
import itertools
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from germline.config import TaskBase
from germline.engines.served.http_client import RequestRefused
from germline.evaluation.bradley_terry import Rating, Verdict, rate_models
from germline.record.atomic_files import append_rows, check_writable, keep_rows, read_each
from germline.record.metrics_rows import rollout_text
from germline.run.inference import SourceEvaluation, open_evaluation
from germline.run.template_thinking import with_opened_thinking
from germline.scorers.batch_queue import BatchQueue
from germline.scorers.pairwise_judge import JudgeReply, PairwiseJudge
from germline.scorers.text_template import full_prompt
from germline.scorers.types import NotScoredError
from germline.tasks.thinking import scored_text_of
from germline.types import Example, GermlineError, HeldOutScore, Split


@dataclass(frozen=True)
class Comparison:
    """A request to the judge: which of two completions of an example is better."""

    example: Example
    models: tuple[str, str]
    completions: tuple[str, str]
    request: Mapping[str, Any]
    digest: str


@dataclass(frozen=True, kw_only=True)
class EloResult:
    """The ratings, and what they rest on.

    Attributes:
        anchor: the model whose rating is 1000.
        ratings: best first.
        scores: on the task, by model.
        decided: pairs with the same verdict in both orders.
        abstained: pairs whose verdict changes with the order.
        no_verdict: pairs with a reply without a verdict.
        identical: pairs of equal completions, which are not judged.
        failure: the most frequent reason why a reply has no verdict, and its number.
        first_preferred: share of the verdicts that prefer the completion that is given first.
        prompts: that the models completed.
        asked: requests that were sent; the file had the other replies.
        file: of the replies.
    """

    anchor: str
    ratings: Sequence[Rating]
    scores: Mapping[str, HeldOutScore]
    decided: int
    abstained: int
    no_verdict: int
    identical: int
    failure: tuple[str, int] | None
    first_preferred: float | None
    prompts: int
    asked: int
    file: Path


class ReplyFile:
    """The replies of a judge, by the digest of the request; thread-safe.

    Raises:
        GermlineError: a line of the file is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        keep_rows(path, lambda _: True)  # a killed process may have left an incomplete line
        self._replies = {
            digest: reply for digest, reply in read_each(path, _read_row) if reply.text is not None
        }

    def __contains__(self, one: Comparison) -> bool:
        return one.digest in self._replies

    def __getitem__(self, one: Comparison) -> JudgeReply:
        return self._replies[one.digest]

    def add(self, one: Comparison, reply: JudgeReply) -> None:
        """Append a reply to the file."""
        row = {
            "example": one.example.index,
            "prompt": full_prompt(one.example),
            "models": one.models,
            "completions": one.completions,
            **asdict(reply),
            "request": one.digest,
        }
        with self._lock:
            append_rows(self.path, [row])
            self._replies[one.digest] = reply


def open_models(
    sources: Sequence[str],
    task: TaskBase | None = None,
    generations: Sequence[int | Literal["best"] | None] = (None,),
    *,
    split: Split = "test",
    limit: int | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, SourceEvaluation]:
    """Find what is compared, by name.

    Args:
        sources: runs and models.
        task: None: that of the first source, which is a run.
        generations: of every run that is a source; None is its newest.
        split: of the examples.
        limit: only the first so many examples.
        overrides: settings of engine, microbatch and graders.

    Raises:
        GermlineError: a source cannot be found, is given twice, or is alone.
    """
    opened: dict[str, SourceEvaluation] = {}
    for source in sources:
        is_run = (Path(source) / "run.json").exists()
        for generation in generations if is_run else (None,):
            name = source if generation is None else f"{source}@{generation}"
            if name in opened:
                raise GermlineError(f"elo: {name} is given twice: name each model once")
            opened[name] = open_evaluation(source, task, split, limit, overrides, generation)
            task = opened[name].config.task
    if len(opened) < 2:
        raise GermlineError(
            f"elo: {' '.join(opened)} has nothing to be compared with: name another run or model, "
            "or generations of a run, such as -g -1 -g best"
        )
    return opened


def compare_models(
    models: Mapping[str, SourceEvaluation],
    judge: PairwiseJudge,
    file: Path,
    anchor: str | None = None,
    on_progress: Callable[[str], None] = lambda _: None,
) -> EloResult:
    """Generate completions with every model, let a judge compare them, and rate the models.

    Args:
        models: at least two, by name.
        judge: is closed at the end.
        file: of the replies; one that exists is continued.
        anchor: the model whose rating is 1000; default: the first one.
        on_progress: called with what is being done.

    Raises:
        GermlineError: the judge stops answering or gives no verdict; its replies are in the file.
    """
    anchor = next(iter(models)) if anchor is None else anchor
    if anchor not in models:
        raise GermlineError(f"elo: --anchor={anchor} is not compared: use {' or '.join(models)}")
    check_writable(file)
    replies = ReplyFile(file)
    scores: dict[str, HeldOutScore] = {}
    texts: dict[str, Mapping[int, str]] = {}
    with closing(judge):
        for name, evaluation in models.items():
            on_progress(f"generating completions of {name}")
            scores[name], texts[name] = _completed(evaluation)
        examples = models[anchor].examples
        pairs, identical = _pairs(texts, examples, judge)
        asked = _ask(judge, pairs, replies, on_progress)
    answers = [replies[one] for pair in pairs for one in pair]
    preferred = [reply.preferred for reply in answers if reply.preferred is not None]
    failures = Counter(reply.failure for reply in answers if reply.failure).most_common(1)
    if answers and not preferred:
        raise GermlineError(
            f"elo: none of the {len(answers)} requests to the judge has a verdict. Most often "
            f"({failures[0][1]}): {failures[0][0]}. Use a judge that follows the instructions, "
            "longer replies (judge.max_new_tokens) or another message (judge.template). The "
            f"replies are kept in {file}; with another judge of the same name, use another --out"
        )
    outcomes = [(pair[0], _outcome(replies[pair[0]], replies[pair[1]])) for pair in pairs]
    verdicts = [
        Verdict(one.example.index, *(one.models if outcome == "first" else one.models[::-1]))
        for one, outcome in outcomes
        if outcome in ("first", "second")
    ]
    counts = Counter(outcome for _, outcome in outcomes)
    return EloResult(
        anchor=anchor,
        ratings=rate_models([*models], verdicts, anchor),
        scores=scores,
        decided=len(verdicts),
        abstained=counts["abstained"],
        no_verdict=counts["no verdict"],
        failure=failures[0] if failures else None,
        first_preferred=preferred.count("first") / len(preferred) if preferred else None,
        identical=identical,
        prompts=len(examples),
        asked=asked,
        file=file,
    )


def _outcome(as_given: JudgeReply, swapped: JudgeReply) -> str:
    """Return which completion of a pair is preferred in both orders, or why none is."""
    if as_given.preferred is None or swapped.preferred is None:
        return "no verdict"
    return "abstained" if as_given.preferred == swapped.preferred else as_given.preferred


def _completed(evaluation: SourceEvaluation) -> tuple[HeldOutScore, dict[int, str]]:
    """Return the score of a model and its completion of each example."""
    score, evaluated = evaluation.run(scorers=False)
    text_of = scored_text_of(with_opened_thinking(evaluation.config, evaluation.task))
    return score, {one.example: text_of(rollout_text(one)) for one in evaluated.rollouts}


def _pairs(
    texts: Mapping[str, Mapping[int, str]], examples: Sequence[Example], judge: PairwiseJudge
) -> tuple[list[tuple[Comparison, Comparison]], int]:
    """Return what the judge compares, prompt by prompt, and the number of equal completions.

    The order within a pair is that of names, so it does not depend on the order of arguments.
    """

    def comparison(example: Example, models: tuple[str, str]) -> Comparison:
        first, second = (texts[name][example.index] for name in models)
        request = judge.request(full_prompt(example), first, second)
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]
        return Comparison(example, models, (first, second), request, digest)

    pairs = []
    identical = 0
    for example, (one, two) in itertools.product(
        examples, itertools.combinations(sorted(texts), 2)
    ):
        if texts[one][example.index] == texts[two][example.index]:
            identical += 1
        else:
            pairs.append((comparison(example, (one, two)), comparison(example, (two, one))))
    return pairs, identical


def _ask(
    judge: PairwiseJudge,
    pairs: Sequence[tuple[Comparison, Comparison]],
    replies: ReplyFile,
    on_progress: Callable[[str], None],
) -> int:
    """Send the requests that have no reply yet, and return their number.

    Raises:
        GermlineError: the judge stops answering.
    """
    missing = {one.digest: one for pair in pairs for one in pair if one not in replies}

    def answer(batch: list[Comparison]) -> list[None]:
        for one in batch:
            replies.add(one, judge.ask(one.request))
        return [None] * len(batch)

    queue = BatchQueue(answer, batch_size=1, threads=judge.concurrency, name="judge")
    try:
        for done, future in enumerate(
            as_completed([queue.submit([one]) for one in missing.values()])
        ):
            future.result()
            on_progress(f"{done + 1} of {len(missing)} replies of the judge")
    except (NotScoredError, RequestRefused) as error:
        judge.close()
        queue.close()
        queue.join()  # what is being answered is kept too
        kept = sum(one in replies and two in replies for one, two in pairs)
        raise GermlineError(
            f"elo: {error}; {kept} of {len(pairs)} pairs are judged and kept in {replies.path}: "
            "the same command goes on from there"
        ) from None
    finally:
        queue.close()
    return len(missing)


def _read_row(row: Mapping[str, Any]) -> tuple[str, JudgeReply]:
    return row["request"], JudgeReply(row["preferred"], row["text"], row["failure"])
