"""Elo ratings of runs and models: a judge compares their completions of the same prompts.

Every two models meet on every prompt, in both orders. A pair is decided only if the judge prefers
the same completion both times; if its verdict changes with the order, it abstains. An abstention is
no half win for each, as a tie would be, and a reply without a verdict is no loss: both are counted
and left out of the ratings. Equal completions are not sent to the judge.

Every reply is a line of a file, written as soon as it is there. A request that the file has a reply
for is not sent again, so an interrupted comparison goes on where it ended, and another model or
more prompts cost only what is new. A request is identified by its content: the judge's model and
settings, the prompt and both completions. What the service refused or did not answer is sent again.

Bradley and Terry (1952, Biometrika 39) give model i a rating r_i, with

    (1)  P(i beats j) = 1 / (1 + 10^((r_j - r_i) / 400))

on the scale of Elo. The ratings maximize the likelihood of all verdicts together and of one more
win of every model over every other one (Laplace's rule of succession), so they are finite, even of
a model that never lost. They are relative to an anchor, whose rating is 1000.

Intervals are percentiles over 1000 resamples of the prompts, as verdicts about one prompt depend on
each other. It is the Bayesian bootstrap (Rubin 1981, Annals of Statistics 9): prompts have random
weights, and the added wins are those of two more prompts.
"""

import hashlib
import itertools
import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64

from germline.config import TaskBase
from germline.engines.http_client import RequestRefused
from germline.graders.batch_queue import BatchQueue
from germline.record.atomic_files import Row, append_rows, check_writable, keep_rows, read_each
from germline.record.metrics_rows import rollout_text
from germline.run.inference import SourceEvaluation, open_evaluation
from germline.scorers import NotScoredError, full_prompt
from germline.scorers.judges import PairwiseJudge
from germline.tasks.task_settings import scored_text_of
from germline.types import Example, GermlineError, HeldOutScore

ELO_SCALE = 400 / math.log(10)
"""Elo points per unit of log-odds."""

RESAMPLES, MOST_STEPS = 1000, 1000

NO_REPLIES = "is no file of replies, or a damaged one: name another --out"


class Comparison(NamedTuple):
    """A request to the judge: which of two completions of an example is better."""

    example: Example
    models: tuple[str, ...]
    completions: tuple[str, ...]
    request: Mapping[str, Any]
    digest: str


class Verdict(NamedTuple):
    """A decided game: both names, and the prompt on which the winner's answer was preferred."""

    prompt: int
    winner: str
    loser: str


class Rating(NamedTuple):
    """The rating of a model, the 95 % interval of its difference to the anchor, and its games."""

    model: str
    rating: float
    low: float
    high: float
    wins: int
    losses: int


@dataclass(frozen=True, kw_only=True)
class EloResult:
    """The ratings, best first, and what they rest on.

    Pairs of completions are `decided` by the same verdict in both orders, `abstained` where it
    changes with the order, with `no_verdict` in a reply, or `identical` and not judged.
    `first_preferred` is the share of verdicts for the completion that is given first; `requests`
    were sent, and the file had the other replies.
    """

    anchor: str
    ratings: Sequence[Rating]
    scores: Mapping[str, HeldOutScore]
    prompts: int
    decided: int
    abstained: int
    no_verdict: int
    identical: int
    first_preferred: float | None
    requests: int
    replies: Path


def open_models(
    sources: Sequence[str],
    task: TaskBase | None,
    generations: Sequence[int | Literal["best"] | None] = (None,),
    *,
    limit: int | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, SourceEvaluation]:
    """Find what is compared, by name; without a task, each run is asked its own."""
    opened: dict[str, SourceEvaluation] = {}
    for source in sources:
        is_run = (Path(source) / "run.json").exists()
        for generation in generations if is_run else (None,):
            name = source if generation is None else f"{source}@{generation}"
            if name in opened:
                raise GermlineError(f"elo: {name} is given twice: name each model once")
            opened[name] = open_evaluation(source, task, "test", limit, overrides, generation)
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
    on_progress: Callable[[str], None] = lambda _: None,
) -> EloResult:
    """Generate completions with every model, let a judge compare them, and rate the models.

    The replies go to a file; one that exists is continued. The rating of the first model is 1000.
    """
    anchor = next(iter(models))
    check_writable(file)
    needed = ("request", "text", "preferred")
    rows = read_each(file, lambda row: {name: row[name] for name in needed}, f"it {NO_REPLIES}")
    if not rows and file.exists() and file.stat().st_size:
        raise GermlineError(f"elo: {file} {NO_REPLIES}")
    keep_rows(file, lambda _: True)  # a killed process may have left an incomplete line
    replies = {row["request"]: row for row in rows if row["text"] is not None}
    scores: dict[str, HeldOutScore] = {}
    texts: dict[str, Mapping[int, str]] = {}
    with closing(judge):
        for name, evaluation in models.items():
            on_progress(f"generating completions of {name}")
            scores[name], evaluated = evaluation.run(scorers=False)
            text_of = scored_text_of(evaluation.task)
            texts[name] = {one.example: text_of(rollout_text(one)) for one in evaluated.rollouts}
        examples = models[anchor].examples
        pairs = _pairs(texts, examples, judge)
        requests = _ask(judge, pairs, file, replies, on_progress)
    preferred = [[replies[one.digest]["preferred"] for one in pair] for pair in pairs]
    known = [place for both in preferred for place in both if place is not None]
    verdicts = [
        Verdict(pair[0].example.index, *pair[both[0] == "second"].models)
        for pair, both in zip(pairs, preferred, strict=True)
        # The same place in both orders is not the same completion.
        if {*both} == {"first", "second"}
    ]
    no_verdict = sum(None in both for both in preferred)
    return EloResult(
        anchor=anchor,
        ratings=rate_models([*models], verdicts, anchor),
        scores=scores,
        prompts=len(examples),
        decided=len(verdicts),
        abstained=len(pairs) - len(verdicts) - no_verdict,
        no_verdict=no_verdict,
        identical=len(examples) * math.comb(len(models), 2) - len(pairs),
        first_preferred=known.count("first") / len(known) if known else None,
        requests=requests,
        replies=file,
    )


def rate_models(
    models: Sequence[str], verdicts: Sequence[Verdict], anchor: str, seed: int = 0
) -> list[Rating]:
    """Rate at least two models, best first; the order of models and verdicts changes no bit."""
    names = sorted(models)
    prompts = {prompt: row for row, prompt in enumerate(sorted({one.prompt for one in verdicts}))}
    games = np.zeros((len(prompts), len(names), len(names)))
    for prompt, winner, loser in verdicts:
        games[prompts[prompt], names.index(winner), names.index(loser)] += 1
    wins, losses = games.sum(axis=(0, 2)).astype(int), games.sum(axis=(0, 1)).astype(int)
    upper = np.triu(np.ones((len(names), len(names))), 1)
    padded = np.concatenate([games, [upper, upper.T]])
    weights = np.random.default_rng(seed).dirichlet(np.ones(len(padded)), RESAMPLES) * len(padded)
    weights = np.concatenate([np.ones((1, len(padded))), weights])
    logits = _log_odds(np.tensordot(weights, padded, axes=1))
    ratings = 1000 + ELO_SCALE * (logits - logits[:, [names.index(anchor)]])
    low, high = np.quantile(ratings[1:], (0.025, 0.975), axis=0)
    columns = (one.tolist() for one in (ratings[0], low, high, wins, losses))
    rated = [Rating(*row) for row in zip(names, *columns, strict=True)]
    return sorted(rated, key=lambda one: (-one.rating, one.model))


def _log_odds(
    wins: Float64[np.ndarray, "resamples models models"],
) -> Float64[np.ndarray, "resamples models"]:
    """Return the log-odds of largest likelihood, the first of them 0, by Newton's method."""
    games = wins + wins.swapaxes(1, 2)
    logits = np.zeros(wins.shape[:2])
    step = np.zeros_like(logits)
    for _ in range(MOST_STEPS):
        chance = 1 / (1 + np.exp(logits[:, None, :] - logits[:, :, None]))
        gradient = (wins - games * chance).sum(axis=2)
        curvature = games * chance * (1 - chance)
        laplacian = np.eye(wins.shape[1]) * curvature.sum(axis=2)[:, :, None] - curvature
        step[:, 1:] = np.linalg.solve(laplacian[:, 1:, 1:], gradient[:, 1:, None])[:, :, 0]
        largest = np.ptp(step, axis=1, keepdims=True)
        # Steps in which differences change by 1 at most always increase the likelihood: its second
        # derivative changes by less than the factor e (Bach 2010, EJS 4).
        logits += step / np.maximum(1.0, largest)
        if largest.max() < 1e-10:
            break
    return logits


def _pairs(
    texts: Mapping[str, Mapping[int, str]], examples: Sequence[Example], judge: PairwiseJudge
) -> list[tuple[Comparison, Comparison]]:
    """Return the pairs of completions that are not equal, each in both orders.

    The order within a pair is that of names, so it does not depend on the order of arguments.
    """

    def comparison(example: Example, *models: str) -> Comparison:
        first, second = (texts[name][example.index] for name in models)
        request = judge.request(full_prompt(example), first, second)
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]
        return Comparison(example, models, (first, second), request, digest)

    return [
        (comparison(example, one, two), comparison(example, two, one))
        for example in examples
        for one, two in itertools.combinations(sorted(texts), 2)
        if texts[one][example.index] != texts[two][example.index]
    ]


def _ask(
    judge: PairwiseJudge,
    pairs: Sequence[tuple[Comparison, Comparison]],
    file: Path,
    replies: dict[str, Row],
    on_progress: Callable[[str], None],
) -> int:
    """Send the requests that have no reply yet, and return their number."""
    missing = {one.digest: one for pair in pairs for one in pair if one.digest not in replies}
    lock = threading.Lock()

    def answer(batch: list[Comparison]) -> list[None]:
        (one,) = batch
        row = {
            "example": one.example.index,
            "prompt": full_prompt(one.example),
            "models": one.models,
            "completions": one.completions,
            **asdict(judge.ask(one.request)),
            "request": one.digest,
        }
        with lock:
            append_rows(file, [row])
            replies[one.digest] = row
        return [None]

    queue = BatchQueue([answer] * judge.concurrency, batch_size=1, name="judge")
    try:
        futures = [queue.submit([one]) for one in missing.values()]
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            on_progress(f"{done} of {len(missing)} replies of the judge")
    except (NotScoredError, RequestRefused) as error:
        judge.close()
        queue.close()
        queue.join()  # what is being answered is kept too
        kept = sum(one.digest in replies and two.digest in replies for one, two in pairs)
        raise GermlineError(
            f"elo: {error}; {kept} of {len(pairs)} pairs are judged and kept in {file}: the same "
            "command goes on from there"
        ) from None
    finally:
        queue.close()
    return len(missing)
