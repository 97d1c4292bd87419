"""Show the progress of a training as plain lines, for files and pipes."""

from rich.console import Console

from germline.cli import text_format
from germline.cli.progress_view import (
    RemainingTime,
    SilentView,
    cost_weight,
    tokens_per_s,
    trial_begin,
    trial_result,
    unit_of_sigma,
)
from germline.record import RunDirectory
from germline.record.atomic_files import Row
from germline.record.metrics_rows import (
    fitness_summary,
    generation_row,
    mean_sigma,
    step_in_sigmas,
)
from germline.report.score_decline_advice import score_decline_advice
from germline.report.score_divergence_advice import score_divergence_advice
from germline.signal_types import SigmaTrial
from germline.types import GenerationRecord, HeldOutScore


class LineView(SilentView):
    """One plain line per generation, for files and pipes."""

    def __init__(self, console: Console, run: RunDirectory | None = None) -> None:
        self._console = console
        self._run = run
        self._clock = RemainingTime()
        self._rows: list[Row] = []
        self._scores: list[HeldOutScore] = []
        self._printed: set[str] = set()
        self._trials = 0

    def start(self) -> None:
        """Load the generations of an earlier part of the run."""
        if self._run is not None:
            self._rows = self._run.generations()
            self._scores = [row.score for row in self._run.held_out()]

    def generation(self, record: GenerationRecord) -> None:
        """Print the line of a generation, and new advice on the scores."""
        self._clock.tick(record)
        self._rows.append(generation_row(record))
        if self._run is not None and not self._scores:
            self._scores = [row.score for row in self._run.held_out()]
            for score in self._scores[:1]:  # before training, so no generation contains it
                self._print(f"{'  '.join(_held_out(score))} before training")
        unit, graded = "", "member"
        if self._run is not None:
            unit, graded = unit_of_sigma(self._run.config), self._run.config.method.graded
        self._print(generation_line(record, self._clock.left_s, unit, graded))
        sentences = {}
        if self._run is not None:
            if record.held_out is not None:
                self._scores = [row.score for row in self._run.held_out()]
            worse = score_decline_advice(self._run.config, self._run.path, self._rows, self._scores)
            if worse is not None:
                sentences["worse"] = "\n  ".join((worse.text, *worse.commands))
            for one in score_divergence_advice(self._run.config, self._run.path, self._scores):
                sentences[one.found.scorer] = "\n  ".join((one.text, *one.commands))
        for about, sentence in sentences.items():
            if about not in self._printed:
                self._print(f"  {sentence}")
        self._printed = set(sentences)

    def trial(self, trial: SigmaTrial) -> None:
        """Print the begin of a trial, as one can take minutes, and its result."""
        if trial.kl is None:
            self._trials += 1
            self._print(f"calibrating sigma, {trial_begin(self._trials, trial)} ...")
        else:
            self._print(f"  {trial_result(trial, self._run.config if self._run else None)}")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


def generation_line(
    record: GenerationRecord, left_s: float | None, unit: str = "", graded: str = "member"
) -> str:
    """Format a generation as one line.

    Args:
        record: of the generation.
        left_s: estimated seconds to the end of the run.
        unit: of sigma, with a leading space; empty: that of the weights.
        graded: what a fitness is of.
    """
    fitness = {
        name: text_format.number(value) for name, value in fitness_summary(record.fitness).items()
    }
    width = len(str(record.generations - 1))
    parts = [
        f"generation {record.generation:>{width}} ({record.generation + 1}/{record.generations})",
        f"fitness {fitness['mean']}",
        f"20-80 % of {graded}s {fitness['p20']} to {fitness['p80']}",
        f"best {fitness['max']}",
    ]
    parts.append(f"sigma {text_format.number(mean_sigma(record))}{unit}")
    if (step := step_in_sigmas(record.update)) is not None:
        parts.append(f"step {text_format.number(step)} sigmas")
    if cost := cost_weight(record.strategy_metrics):
        parts.append(cost)
    if record.held_out is not None:
        parts += _held_out(record.held_out)
    parts.append(f"{text_format.number(tokens_per_s(record))} tokens/s")
    if left_s is not None:
        parts.append(f"{text_format.duration(left_s)} left")
    return "  ".join(parts)


def _held_out(score: HeldOutScore) -> list[str]:
    """Format a held-out score, and those of the same completions by `held_out.scorers`."""
    return [f"held-out {one.metric} {text_format.score(one)}" for one in (score, *score.scorers)]
