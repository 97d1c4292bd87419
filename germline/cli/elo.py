"""The command `germline elo`: a judge compares the completions of runs and models in pairs."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from germline.cli import completion
from germline.cli.arguments import (
    check_prefixes,
    generation_of,
    runs_of_source,
    split_words,
    task_section,
)
from germline.cli.json_output import AsJson, print_json
from germline.cli.word_wrap import print_stdout

if TYPE_CHECKING:
    from germline.run.elo import EloResult
    from germline.scorers.pairwise_judge import PairwiseJudge

COMPARISON_SETTINGS = ("task.", "engine.", "engine=", "microbatch.", "graders.")
"""Prefixes of settings that have an effect here; other settings are refused."""

ELO_EXAMPLES = (
    "germline elo runs/sums -g -1 -g best --judge http://localhost:8000/v1",
    "germline elo runs/a nano --anchor nano --limit 99 --judge http://judge:80/v1",
    "germline elo runs/a runs/b --judge https://judge.org/v1 --judge-model large",
)


def elo(  # noqa: PLR0913 - the options of a command
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|MODEL|KEY=VALUE",
            help="Runs, models and adapters to compare; and settings task.*, engine.*, "
            "microbatch.* and graders.*.",
            autocompletion=completion.complete_models,
        ),
    ],
    judge: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Address of an OpenAI-compatible judge, up to the version: "
            "http://localhost:8000/v1.",
        ),
    ],
    *,
    judge_model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Its model; default: the only one that the judge serves."
        ),
    ] = None,
    judge_token_env: Annotated[
        str | None,
        typer.Option(
            metavar="VARIABLE", help="Environment variable with the token that the judge needs."
        ),
    ] = None,
    judge_template: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Message to the judge, with {prompt}, {first} and {second}; it must ask for [[A]] "
            "or [[B]].",
        ),
    ] = None,
    judge_max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Longest reply of the judge, in tokens.")
    ] = 512,
    judge_temperature: Annotated[
        float, typer.Option(min=0, help="Sampling temperature of the judge.")
    ] = 0.0,
    judge_concurrency: Annotated[
        int, typer.Option(min=1, help="Requests to the judge at the same time.")
    ] = 4,
    judge_timeout_s: Annotated[
        float, typer.Option(min=0.001, max=1e6, help="Longest wait for one reply, in seconds.")
    ] = 60.0,
    judge_retry_timeout_s: Annotated[
        float,
        typer.Option(min=0, help="How long to ask a judge that does not answer, in seconds."),
    ] = 120.0,
    task: Annotated[
        str | None,
        typer.Option(
            metavar="TASK",
            help="Short name or file of the task; default: that of the first run.",
            autocompletion=completion.complete_tasks,
        ),
    ] = None,
    split: Annotated[Literal["train", "test"], typer.Option(help="Split of the prompts.")] = "test",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Use only the first N prompts; default: all.")
    ] = None,
    generation: Annotated[
        list[str] | None,
        typer.Option(
            "--generation",
            "-g",
            metavar="GENERATION",
            help="Weights of every run after this generation, once for each: a number, -1 for the "
            "start, or best (highest held-out score). Default: the newest.",
        ),
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="The model whose rating is 1000, as the table names it; default: the first.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap intervals.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of the judgments; one that is there is continued. Default: "
            "elo-TASK-SPLIT.jsonl, in the first run or the working directory.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rate runs and models by a judge that compares their completions in pairs.

    Every pair is judged in both orders. Only a pair whose verdict does not change with the order
    counts; ratings are Bradley-Terry's of maximum likelihood, on the scale of Elo, with bootstrap
    intervals. The command can be interrupted, and given again to go on.
    """
    given, settings = split_words(sources)
    check_prefixes(settings, COMPARISON_SETTINGS, "elo", "a comparison")
    runs = [run for source in given for run in runs_of_source(source)]
    generations = [generation_of("elo", text) for text in generation or []]
    task_settings = [one for one in settings if one.startswith("task.")]
    section = task_section("elo", runs[0], task, task_settings) if runs else None
    asked = _open_judge(
        url=judge,
        model=judge_model,
        token_env=judge_token_env,
        template=judge_template,
        max_new_tokens=judge_max_new_tokens,
        temperature=judge_temperature,
        concurrency=judge_concurrency,
        timeout_s=judge_timeout_s,
        retry_timeout_s=judge_retry_timeout_s,
    )

    from rich.console import Console

    from germline.run.elo import EloSettings, compare_models

    compared = EloSettings(
        section,
        generations or (None,),
        split,
        limit,
        [one for one in settings if not one.startswith("task.")],
        anchor,
        seed,
        out,
    )
    console = Console(stderr=True)
    shown = not as_json and console.is_terminal
    with console.status("loading ...") if shown else nullcontext() as status:
        show = (lambda text: status.update(text)) if status else lambda _: None
        try:
            result = compare_models(runs, asked, compared, show)
        except KeyboardInterrupt:
            kept = "What is judged is kept: the same command goes on from there."
            raise KeyboardInterrupt(kept) from None
    _check_verdicts(result, judge_max_new_tokens)
    if as_json:
        print_json(_as_json(result, asked))
    else:
        _print_result(result)


def _open_judge(*, template: Path | None, **settings: Any) -> "PairwiseJudge":
    """Return the judge that the options name; it answers.

    Raises:
        GermlineError: an option is wrong, or the judge cannot be reached.
    """
    from pydantic import ValidationError

    from germline.config.scorers import PairwiseJudgeSettings
    from germline.scorers.pairwise_judge import PairwiseJudge, option_of
    from germline.types import GermlineError

    if template is not None:
        try:
            settings["template"] = template.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise GermlineError(
                f"elo: {option_of('template')}={template} cannot be read: {error}"
            ) from None
    try:
        return PairwiseJudge(PairwiseJudgeSettings(**settings))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        why = first["msg"].removeprefix("Value error, ")
        raise GermlineError(f"elo: {option_of(str(first['loc'][0]))}: {why}") from None


def _check_verdicts(result: "EloResult", longest: int) -> None:
    """Refuse a comparison of which the judge decided nothing.

    Raises:
        GermlineError: no reply of the judge has a verdict.
    """
    from germline.cli import text_format
    from germline.types import GermlineError

    if not result.has_no_verdict:
        return
    texts = [repr(text_format.one_line_excerpt(text, 100)) for text in result.first_texts(2)]
    (reason, count), *_ = result.failures
    if not texts:
        raise GermlineError(
            f"elo: the judge's service answered none of the {2 * len(result.judgments)} requests "
            f"with a reply, so there are no ratings. Most often ({count}): "
            f"{text_format.escape_control_characters(reason)}. Correct this; the same command "
            "sends the requests again"
        )
    raise GermlineError(
        f"elo: none of the {2 * len(result.judgments)} replies of the judge has a verdict, so "
        f"there are no ratings. It wrote {', then '.join(texts)}. Most often ({count}): "
        f"{text_format.escape_control_characters(reason)}. Use a judge that follows the "
        f"instructions, allow longer replies (--judge-max-new-tokens, now {longest}), or ask in "
        f"other words (--judge-template). The replies are kept in {result.file}, and count again "
        "for a judge of the same name, settings and template: with another one behind the same "
        "name, name another file (--out)"
    )


def _print_result(result: "EloResult") -> None:
    from germline.cli import tables, text_format

    metric = next(iter(result.scores.values())).metric
    tables.print_table(
        ("model", "Elo", "95 % interval", "won", "lost", metric),
        [
            (
                one.model,
                _points(one.rating),
                f"{_points(one.low)} to {_points(one.high)}"
                if one.model != result.anchor
                else "anchor",
                str(one.wins),
                str(one.losses),
                text_format.score(result.scores[one.model]),
            )
            for one in result.ratings
        ],
    )
    print_stdout(
        f"{result.prompts} prompts, {len(result.judgments) + result.identical} pairs: "
        f"{result.count('decided')} decided, {result.count('abstained')} abstentions (the verdict "
        f"changes with the order), {result.count('no verdict')} without a verdict, "
        f"{result.identical} of equal completions"
    )
    if result.first_preferred is not None:
        print_stdout(f"the judge prefers the first completion in {result.first_preferred:.0%}")
    if result.failures:
        (reason, count), *_ = result.failures
        text = text_format.escape_control_characters(reason)
        print_stdout(f"replies without a verdict, most often ({count}): {text}")
    if not result.count("decided"):
        print_stdout("no pair is decided, so there are no ratings")
    print_stdout(f"judgments: {result.file}")


def _points(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}"


def _as_json(result: "EloResult", judge: "PairwiseJudge") -> dict[str, object]:
    from germline.cli.json_output import score_values

    return {
        "judge": {"url": judge.settings.url, "model": judge.model},
        "anchor": result.anchor,
        "ratings": [
            {
                "model": one.model,
                "rating": one.rating,
                "interval_95": [one.low, one.high],
                "wins": one.wins,
                "losses": one.losses,
                "score": score_values(result.scores[one.model]),
            }
            for one in result.ratings
        ],
        "prompts": result.prompts,
        "decided": result.count("decided"),
        "abstained": result.count("abstained"),
        "no_verdict": result.count("no verdict"),
        "identical": result.identical,
        "first_preferred": result.first_preferred,
        "requests": result.asked,
        "judgments": result.file,
    }
