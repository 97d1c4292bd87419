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
from typing import Any, Literal, NamedTuple

from germline.config import TaskBase
from germline.engines.served.http_client import RequestRefused
from germline.evaluation.bradley_terry import Rating, Verdict, rate_models
from germline.record.atomic_files import append_rows, check_writable, keep_rows, read_each
from germline.record.metrics_rows import rollout_text
from germline.run.inference import SourceEvaluation, open_evaluation
from germline.scorers.batch_queue import BatchQueue
from germline.scorers.judges import JudgeReply, PairwiseJudge
from germline.scorers.types import NotScoredError, full_prompt
from germline.tasks.thinking import scored_text_of
from germline.types import Example, GermlineError, HeldOutScore, Split


class Comparison(NamedTuple):
    """A request to the judge: which of two completions of an example is better."""

    example: Example
    models: tuple[str, str]
    completions: tuple[str, str]
    request: Mapping[str, Any]
    digest: str


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
    task: TaskBase | None = None,
    generations: Sequence[int | Literal["best"] | None] = (None,),
    *,
    split: Split = "test",
    limit: int | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, SourceEvaluation]:
    """Find what is compared, by name; without a task, that of the first source is used."""
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

    The replies go to a file; one that exists is continued. The anchor, by default the first model,
    has the rating 1000.
    """
    anchor = next(iter(models)) if anchor is None else anchor
    if anchor not in models:
        raise GermlineError(f"elo: --anchor={anchor} is not compared: use {' or '.join(models)}")
    check_writable(file)
    keep_rows(file, lambda _: True)  # a killed process may have left an incomplete line
    rows = read_each(
        file,
        lambda row: (row["request"], JudgeReply(row["preferred"], row["text"], row["failure"])),
    )
    replies = {digest: reply for digest, reply in rows if reply.text is not None}
    scores: dict[str, HeldOutScore] = {}
    texts: dict[str, Mapping[int, str]] = {}
    with closing(judge):
        for name, evaluation in models.items():
            on_progress(f"generating completions of {name}")
            scores[name], evaluated = evaluation.run(scorers=False)
            text_of = scored_text_of(evaluation.task)
            texts[name] = {one.example: text_of(rollout_text(one)) for one in evaluated.rollouts}
        examples = models[anchor].examples
        pairs, identical = _pairs(texts, examples, judge)
        requests = _ask(judge, pairs, file, replies, on_progress)
    answers = [replies[one.digest] for pair in pairs for one in pair]
    preferred = [reply.preferred for reply in answers if reply.preferred is not None]
    if answers and not preferred:
        failures = Counter(str(reply.failure) for reply in answers).most_common(1)
        raise GermlineError(
            f"elo: none of the {len(answers)} requests to the judge has a verdict. Most often "
            f"({failures[0][1]}): {failures[0][0]}. Use a judge that follows the instructions, "
            "longer replies (judge.max_new_tokens) or another message (judge.template), and "
            f"another --out than {file}"
        )
    verdicts: list[Verdict] = []
    outcomes: Counter[str] = Counter()
    for as_given, swapped in pairs:
        first, second = (replies[one.digest].preferred for one in (as_given, swapped))
        if first is None or second is None:
            outcomes["no verdict"] += 1
        elif first == second:  # the same place, so not the same completion
            outcomes["abstained"] += 1
        else:
            names = as_given.models if first == "first" else swapped.models
            verdicts.append(Verdict(as_given.example.index, *names))
    return EloResult(
        anchor=anchor,
        ratings=rate_models([*models], verdicts, anchor),
        scores=scores,
        prompts=len(examples),
        decided=len(verdicts),
        abstained=outcomes["abstained"],
        no_verdict=outcomes["no verdict"],
        identical=identical,
        first_preferred=preferred.count("first") / len(preferred) if preferred else None,
        requests=requests,
        replies=file,
    )


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

    games = [*itertools.product(examples, itertools.combinations(sorted(texts), 2))]
    pairs = [
        (comparison(example, (one, two)), comparison(example, (two, one)))
        for example, (one, two) in games
        if texts[one][example.index] != texts[two][example.index]
    ]
    return pairs, len(games) - len(pairs)


def _ask(
    judge: PairwiseJudge,
    pairs: Sequence[tuple[Comparison, Comparison]],
    file: Path,
    replies: dict[str, JudgeReply],
    on_progress: Callable[[str], None],
) -> int:
    """Send the requests that have no reply yet, and return their number."""
    missing = {one.digest: one for pair in pairs for one in pair if one.digest not in replies}
    lock = threading.Lock()

    def answer(batch: list[Comparison]) -> list[None]:
        for one in batch:
            reply = judge.ask(one.request)
            with lock:
                row = {
                    "example": one.example.index,
                    "prompt": full_prompt(one.example),
                    "models": one.models,
                    "completions": one.completions,
                    **asdict(reply),
                    "request": one.digest,
                }
                append_rows(file, [row])
                replies[one.digest] = reply
        return [None] * len(batch)

    queue = BatchQueue(answer, batch_size=1, threads=judge.concurrency, name="judge")
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
