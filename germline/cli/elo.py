"""The command `germline elo`: a judge compares the completions of runs and models in pairs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from germline.cli.arguments import (
    MODEL_SETTINGS,
    Generations,
    Limit,
    TaskOption,
    read_section,
    runs_of_sources,
    split_words,
    task_of_sources,
)
from germline.cli.output import AsJson, print_json, print_table, score_values
from germline.errors import count_of

if TYPE_CHECKING:
    from germline.run.elo import EloResult

ELO_EXAMPLES = (
    "germline elo runs/sums -g -1 -g best judge.url=http://localhost:8000/v1",
    "germline elo nano runs/a runs/b judge.url=http://judge:80/v1 --limit 99",
)


def elo(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|MODEL|KEY=VALUE",
            help="Runs, models and adapters to compare; and settings judge.* (url, model, "
            "token_env, template, max_new_tokens, temperature, concurrency, timeout_s, "
            "retry_timeout_s), task.*, engine.*, microbatch.* and graders.*.",
        ),
    ],
    *,
    task: TaskOption = None,
    limit: Limit = None,
    generation: Generations = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of the judge's replies; one that exists is continued. Default: "
            "elo-TASK.jsonl, in the first run or the working directory.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rate runs and models by a judge that compares their completions in pairs.

    Every pair is judged in both orders. Only a pair whose verdict does not change with the order
    counts; ratings are Bradley-Terry's, on the scale of Elo, with bootstrap intervals; that of the
    first model is 1000. The judge is an OpenAI-compatible service, judge.url=http://HOST:PORT/v1.
    The command can be interrupted, and given again to go on.
    """
    given, settings = split_words("elo", sources, (*MODEL_SETTINGS, "task.", "graders.", "judge."))
    runs = runs_of_sources(given)
    if not runs:
        raise typer.BadParameter("name two runs or models, or generations of a run (-g -1 -g best)")
    section = task_of_sources("elo", runs, task, settings)

    from germline.config.scorers import PairwiseJudgeSettings

    of_judge = [one for one in settings if one.startswith("judge.")]
    chosen = read_section("elo", PairwiseJudgeSettings, of_judge, "judge.")

    from rich.console import Console

    from germline.run.elo import compare_models, open_models
    from germline.scorers.judges import PairwiseJudge

    asked = PairwiseJudge(chosen)
    others = [one for one in settings if not one.startswith(("task.", "judge."))]
    models = open_models(runs, section, generation or [None], limit=limit, overrides=others)
    first = next(iter(models.values()))
    folder = first.directory.path if first.directory else Path()
    file = out or folder / f"elo-{first.task.name}.jsonl"
    try:
        with Console(stderr=True).status("loading ...") as status:  # shown on a terminal alone
            result = compare_models(models, asked, file, status.update)
    except KeyboardInterrupt:
        kept = "What is judged is kept: the same command goes on from there."
        raise KeyboardInterrupt(kept) from None
    if as_json:
        print_json({"judge": {"url": chosen.url, "model": asked.model}, **_values(result)})
    else:
        _print_result(result)


def _print_result(result: "EloResult") -> None:
    from germline.report import text_format

    metric = next(iter(result.scores.values())).metric
    rows = []
    for one in result.ratings:
        interval = f"{one.low:.0f} to {one.high:.0f}" if one.model != result.anchor else "anchor"
        score = text_format.score(result.scores[one.model])
        rows.append(
            (one.model, f"{one.rating:.0f}", interval, f"{one.wins}", f"{one.losses}", score)
        )
    print_table(("model", "Elo", "95 % interval", "won", "lost", metric), rows)
    pairs = result.decided + result.abstained + result.no_verdict + result.identical
    typer.echo(
        f"{count_of(result.prompts, 'prompts')}, {count_of(pairs, 'pairs')}: {result.decided} "
        f"decided, {result.abstained} undecided (the verdict changes with the order), "
        f"{result.no_verdict} without a verdict, {result.identical} of equal completions"
    )
    if result.first_preferred is not None:
        typer.echo(f"the judge prefers the first completion in {result.first_preferred:.0%}")
    if not result.decided:
        typer.echo("no pair is decided: the ratings say nothing")
    typer.echo(f"replies of the judge: {result.replies}")


def _values(result: "EloResult") -> dict[str, object]:
    values = {name: value for name, value in vars(result).items() if name != "scores"}
    values["ratings"] = [
        {
            **{name: getattr(one, name) for name in ("model", "rating", "wins", "losses")},
            "interval_95": [one.low, one.high],
            "score": score_values(result.scores[one.model]),
        }
        for one in result.ratings
    ]
    return values
