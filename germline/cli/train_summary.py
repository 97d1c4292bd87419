"""The summary at the end of a training: scores before and after, paths, and next commands."""

import math
import shlex
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from germline.cli import text_format
from germline.cli.word_wrap import wrap_words
from germline.config import Config, Nes
from germline.evaluation.paired_difference import (
    FEW_CHANGED,
    is_clearly_better,
    paired_difference,
)
from germline.record import HeldOutRow, RunDirectory
from germline.record.atomic_files import Row
from germline.record.best_generation import best_score, rank, signed_score
from germline.record.metrics_rows import paired_samples, scores_by_scorer
from germline.record.seed_study import folder_to_resume
from germline.report.advice import (
    with_update,
    without_update,
)
from germline.report.prompt_option_charts import center_options
from germline.report.random_reward import random_reward
from germline.report.random_start import random_start
from germline.report.score_decline_advice import ScoreDeclineAdvice, score_decline_advice
from germline.report.score_divergence_advice import (
    ScoreDivergenceAdvice,
    score_divergence_advice,
)
from germline.types import HeldOutScore

SHOWN_SAMPLES = 5


def print_result(console: Console, run: RunDirectory, *, quiet: bool) -> None:
    """Print held-out completions and scores before and after training, and the paths of files."""
    scores, rows = run.held_out(), run.generations()
    decline = score_decline_advice(run.config, run.path, rows, [row.score for row in scores])
    if not quiet and len(scores) > 1 and scores[0].samples and scores[-1].samples:
        console.print(completions_table(scores[0], scores[-1], console.width))
    for line in (
        *_scores(scores, run.journal.last_generation() + 1),
        *_start(run, scores),
        *_random_reward(run),
        *_voters(run),
        *_options(rows),
    ):
        print_sentence(console, line)
    divergences = score_divergence_advice(run.config, run.path, [row.score for row in scores])
    for line in advice_lines(decline, *divergences):
        (_print_whole if line.startswith(" ") else print_sentence)(console, line)
    for line in _paths(run):
        _print_whole(console, line)


def advice_lines(*given: ScoreDeclineAdvice | ScoreDivergenceAdvice | None) -> list[str]:
    """Return advice about scores, each with its commands; None is no advice."""
    return [
        line
        for advice in given
        if advice is not None
        for line in (advice.text, *(f"  {command}" for command in advice.commands))
    ]


def print_stopped(console: Console, run: RunDirectory) -> None:
    """Print after which generation a training stopped, and the command that resumes it."""
    last = run.journal.last_generation()
    done = f"{last + 1} of {run.config.generations} done"
    where = f"after generation {last} ({done})" if last >= 0 else "before the first generation"
    print_sentence(console, f"Stopped {where}. Resume with: germline resume {_quoted(run)}")


def print_stopped_early(console: Console, run: RunDirectory) -> None:
    """Say that a training stopped before its last generation as its score no longer improved."""
    best = run.stopped_early
    if best is None:
        return
    done, patience = run.journal.last_generation() + 1, run.config.held_out.patience
    print_sentence(
        console,
        f"Stopped early after {done} of {run.config.generations} generations: the last {patience} "
        f"held-out scores were not better than the best one, {_best(best)} "
        f"(held_out.patience={patience}). To train on: "
        f"germline resume {shlex.quote(str(folder_to_resume(run.path)))} "
        f"held_out.patience={2 * (patience or 1)}",
    )


def print_next_commands(console: Console, run: RunDirectory) -> None:
    """Print commands that use the trained model or continue the run."""
    path = _quoted(run)
    scores = [row.score for row in run.held_out()]
    known = [score for score in scores if math.isfinite(score.mean)]
    best = best_score(scores)
    is_better = best is not None and rank(best) > rank(scores[-1])
    is_trained = best is not None and best.generation > scores[0].generation
    takes_best = is_better and is_trained and run.config.method.replayable
    exported = best if takes_best else known[-1] if known else None
    rows = run.generations()
    # Members that never differed made no update: all generations have the same weights.
    is_updated = not without_update(rows, run.config) or bool(with_update(rows))
    sentences, commands = [], [f'generate {path} "your prompt"']
    if rose := _only_the_reward_rose(exported, known[0]) if exported else "":
        sentences.append(rose)
    if exported and len(known) > 1 and not rose and not is_clearly_better(exported, known[0]):
        doubt = _doubt(exported, known[0], has_random_reward=bool(_random_reward(run)))
        sentences.append(_without_some_updates(rows, run.config) + doubt)
        commands += _commands_in_doubt(run, exported, is_updated=is_updated)
    elif not run.config.engine.has_own_model:  # It has no file format.
        commands.append(
            f"export {path}{' --generation best' if takes_best else ''} --out {_free_name()}"
        )
    is_solved = exported is not None and len(known) > 1 and not rose and _is_solved(exported)
    if exported and is_solved:
        # Of a task with fewer examples than the run asked for, all were scored.
        has_more = exported.n == run.config.held_out.examples
        if not _is_solved(known[0]):
            sentences.append(_solved(has_more=has_more))
        commands += [*[f"eval {path}"] * has_more, "new task my_task"]
    can_continue = not (run.config.strategy.whole_run or run.stopped_early or is_solved)
    # After a decline the advice above continues from the best weights, and not from the last ones.
    if can_continue and is_updated and not score_decline_advice(run.config, run.path, rows, scores):
        commands.append(f"resume {path} generations={2 * run.config.generations}")
    for sentence in sentences:
        print_sentence(console, sentence)
    _print_whole(console, "next:")
    for command in commands:
        _print_whole(console, f"  germline {command}")


def _free_name() -> str:
    """Name a folder to export to that this working directory does not have yet."""
    names = chain(["my-model"], (f"my-model-{number}" for number in count(2)))
    return next(name for name in names if not Path(name).exists())


def _only_the_reward_rose(score: HeldOutScore, start: HeldOutScore) -> str:
    """Say that the reward rose where its metric, one part of it, could not; empty otherwise."""
    if not _is_solved(start) or score.mean != start.mean or not score.reward > start.reward:
        return ""
    return (
        f"Every held-out example was right before training ({start.metric}). The mean reward of "
        f"the held-out completions rose from {text_format.number(start.reward)} to "
        f"{text_format.number(score.reward)}."
    )


def _is_solved(score: HeldOutScore) -> bool:
    """Whether every held-out example was right."""
    return score.proportion and score.mean == (score.higher_is_better is not False)


def _solved(*, has_more: bool) -> str:
    """Say what to do once every held-out example of a run is right."""
    remedy = "score all of the task's, or take harder ones" if has_more else "take harder examples"
    return (
        "Every held-out example of the run is right now, so little is left to learn there: "
        f"{remedy}."
    )


def _without_some_updates(rows: Sequence[Row], config: Config) -> str:
    """Say in how many generations members did not differ, and end with a space; empty for none.

    That no generation made an update is in the warning of the run above.
    """
    sentence = without_update(rows, config) if with_update(rows) else ""
    return f"{sentence} " if sentence else ""


def _doubt(score: HeldOutScore, start: HeldOutScore, *, has_random_reward: bool) -> str:
    """Say why a score does not show that the run has learned something."""
    more = "see the signals in the report, and docs/tuning.md, When a run does not learn"
    if _is_solved(start):
        return (
            "Every held-out example was right before training, so nothing is left to learn there: "
            "take harder examples."
        )
    if signed_score(score) <= signed_score(start):
        return f"{_no_improvement(score, start)}: {more}."
    found = paired_difference(score, start)
    change = "the intervals of the scores before and after training overlap"
    if found:
        change = f"the change is {text_format.difference(found)} examples"
        if found.higher + found.lower < FEW_CHANGED:
            change += f"; the sign test of so few has p = {found.sign_test:.2g}"
    more_of = "More" if _is_solved(score) else "More generations or more"
    decides = (
        "Make the reward deterministic first"
        if has_random_reward
        else f"{more_of} held-out examples decide it"
    )
    return (
        f"The held-out {score.metric} may have improved by chance ({change}), so exporting is not "
        f"suggested yet. {decides}; {more}."
    )


def _no_improvement(score: HeldOutScore, start: HeldOutScore) -> str:
    """Say that the metric did not improve, and what the reward did, where it is not the metric."""
    values = f"{text_format.number(start.mean)} -> {text_format.number(score.mean)}"
    sentence = f"The held-out {score.metric} did not improve ({values})"
    rewards = text_format.mean_rewards(start, score)
    if not rewards:
        return sentence
    if not score.reward > start.reward:
        return f"{sentence}, nor did the reward ({rewards})"
    return (
        f"{sentence}, but the reward of the same completions rose ({rewards}), perhaps by parts "
        f"that {score.metric} does not measure. Compare the answers before and after training"
    )


def _commands_in_doubt(run: RunDirectory, score: HeldOutScore, *, is_updated: bool) -> list[str]:
    """Return the commands that tell whether a run can learn, and whether it has."""
    path, strategy, method = _quoted(run), run.config.strategy, run.config.method
    commands = []
    if method.trains_center and score.generation and is_updated:
        # All held-out examples of the task, and not the `held_out.examples` of the run.
        commands.append(f"eval {path} -g -1 -g {score.generation - 1}")
    can_probe = isinstance(strategy, Nes) and strategy.population > 1 and not run.ancestors
    if can_probe and method.kind == "es":
        commands.append(f"probe {path}")
    return commands


def completions_table(before: HeldOutRow, after: HeldOutRow, width: int) -> Table:
    """Tabulate the answers of the base and the trained model to the same held-out prompts."""
    table = Table(title="held-out prompts, before and after training", title_justify="left")
    column = max(12, (width - 13) // 4)
    for name in ("prompt", "gold answer", "before", "after"):
        table.add_column(name, overflow="fold")
    pairs = [
        (sample, later)
        for sample, later in paired_samples(before.samples, after.samples)
        if later is not None
    ][:SHOWN_SAMPLES]
    prompts = text_format.without_common_start([sample.prompt for sample, _ in pairs])
    for (sample, later), prompt in zip(pairs, prompts, strict=True):
        texts = (prompt, sample.answer, sample.completion, later.completion)
        table.add_row(*(Text(text_format.one_line_excerpt(text, 3 * column)) for text in texts))
    return table


def _scores(scores: list[HeldOutRow], done: int) -> list[str]:
    if not scores:
        return []
    first, last = scores[0].score, scores[-1].score
    if not any(row.score.n for row in scores):
        return ["held-out: the task has no example that could be scored"]
    values = text_format.score(first)
    if last.generation != first.generation:
        values += f" -> {text_format.score(last)}"
    error = text_format.kind_of_error(first, last)
    line = f"held-out {last.metric}: {values} (mean and {error}, n {last.n})"
    if last.generation != first.generation:
        line += _best_of([row.score for row in scores])
    if last.generation < done:
        line += (
            f", before training; not scored after generation {done - 1}"
            if (last.generation == 0)
            else f"; scored last after {last.generation} of {done} updates"
        )
    return [line, *_by_scorers([row.score for row in scores])]


def _best_of(scores: Sequence[HeldOutScore]) -> str:
    """Name the best of the scores; begins with a comma. Where all are equal, none is the best."""
    best = best_score(scores)
    if best is None:
        return ""
    if len({score.mean for score in scores}) > 1:
        is_last = best.generation == scores[-1].generation
        return ", best: the last one" if is_last else f", best: {_best(best)}"
    equal = f", all {len(scores)} scores are equal"
    if len({score.reward for score in scores}) == 1:
        return equal
    reward = text_format.number(best.reward)
    return f"{equal}; the mean reward was highest, {reward}, after {best.generation} updates"


def _start(run: RunDirectory, scores: Sequence[HeldOutRow]) -> list[str]:
    """Return the sentence about a score before training that is not of the base model."""
    has_start = bool(scores) and not scores[0].score.generation and scores[0].score.n > 0
    return [sentence] if has_start and (sentence := random_start(run)) else []


def _by_scorers(scores: Sequence[HeldOutScore]) -> list[str]:
    """Return a line for each of `held_out.scorers`: its first and its last score."""
    return [
        text_format.scorer_line(*dict.fromkeys((found[0], found[-1])))
        for found in scores_by_scorer(scores).values()
    ]


def _random_reward(run: RunDirectory) -> list[str]:
    sentence = random_reward(run.config, run.rollouts())
    return [sentence] if sentence else []


def _best(score: HeldOutScore) -> str:
    return f"{text_format.score(score)} after {score.generation} updates"


def _voters(run: RunDirectory) -> list[str]:
    voters = run.ensemble()
    if not voters:
        return []
    alone = text_format.number(voters[0]["score"])
    return [
        f"the score is that of a vote of {len(voters)} members; the member with the best training "
        f"fitness scores {alone}"
    ]


def _options(rows: Sequence[Row]) -> list[str]:
    options = center_options(rows)
    return [f"prompt options of the center: {', '.join(options)}"] if options else []


def _paths(run: RunDirectory) -> list[str]:
    figure = [f"figure:        {run.figure}"] if run.figure.exists() else []
    report = [f"report:        {run.report}"] if run.report.exists() else []
    return [f"run directory: {run.path}", *figure, *report]


def _quoted(run: RunDirectory) -> str:
    return shlex.quote(str(run.path))


def print_sentence(console: Console, line: str) -> None:
    """Print a sentence, wrapped between words on a terminal and unwrapped in a pipe."""
    shown = wrap_words(line, console.width) if console.is_terminal else line
    _print_whole(console, shown)


def _print_whole(console: Console, line: str) -> None:
    """Print a command or a path without line breaks, so that it can be copied."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)
