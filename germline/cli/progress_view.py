"""Show the progress of a training: a live panel on a terminal, plain lines elsewhere."""

import math
import os
from collections.abc import Iterator, Sequence

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from germline.config import Config
from germline.record import RunDirectory
from germline.record.atomic_files import Row
from germline.record.metrics_rows import generation_row, mean_signal
from germline.report import text_format
from germline.report.findings import WINDOW, Finding
from germline.report.text_format import counted_by, number
from germline.types import GenerationRecord, HeldOutScore, SigmaTrial

STOPPING = "Finishing what is running, then stopping. Ctrl-C again stops at once."

OF_WEIGHTS = {"mean_abs": " x mean |W|", "std": " x std W", "rms": " x rms W"}
"""Units that are a fraction of the weights of each tensor, as they are shown after sigma."""

FRAMES_PER_SECOND = 4


class SilentView:
    """Shows no progress, except a confirmation of Ctrl-C; the base of the other views."""

    def start(self) -> None:
        """Start to show progress."""

    def generation(self, record: GenerationRecord, findings: Sequence[Finding] = ()) -> None:
        """Show a finished generation, and the warnings after it."""

    def trial(self, trial: SigmaTrial) -> None:
        """Show a sigma whose trial begins, or the result of a trial."""

    def stopping(self) -> None:
        """Confirm Ctrl-C; called from a signal handler."""
        # A signal may arrive inside a print; the system call is safe there, a second print is not.
        os.write(2, f"\n{STOPPING}\n".encode())

    def close(self) -> None:
        """Stop showing progress."""


class Clock:
    """A progress bar, and the time that is left by the mean of the finished generations.

    The first one counts for nothing: it has the start of the run and the calibration of sigma.
    """

    def __init__(self, run: RunDirectory) -> None:
        columns = TextColumn("[bold]{task.description}"), MofNCompleteColumn(), BarColumn(20)
        self.bar = Progress(*columns, TimeElapsedColumn(), speed_estimate_period=math.inf)
        total, done = run.config.generations, run.journal.last_generation() + 1
        self._task = self.bar.add_task("generations", total=total, completed=done)

    def tick(self, done: int) -> None:
        """Record that so many generations are finished."""
        self.bar.update(self._task, completed=done)

    @property
    def left(self) -> str:
        """The time that is left, in words; empty while it is not known."""
        seconds = self.bar.tasks[0].time_remaining
        return "" if seconds is None else f"{text_format.duration(float(seconds))} left"


class LineView(SilentView):
    """One plain line per generation, for files and pipes."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._clock = Clock(run)
        self._is_first = run.journal.last_generation() < 0

    def generation(self, record: GenerationRecord, findings: Sequence[Finding] = ()) -> None:
        """Print the line of a generation, the first one after the score before training."""
        self._clock.tick(record.generation + 1)
        if self._is_first:  # No generation contains the score before training.
            for row in self._run.held_out()[:1]:
                typer.echo(f"{'  '.join(_held_out(row.score))} before training")
        self._is_first = False
        typer.echo(generation_line(record, self._clock.left, self._run.config))

    def trial(self, trial: SigmaTrial) -> None:
        """Print the begin of a trial, as one can take minutes, and its result."""
        typer.echo(_trial_line(trial))


def generation_line(record: GenerationRecord, left: str, config: Config) -> str:
    """Format a generation as one line."""
    width = len(str(record.generations - 1))
    number_of = f"generation {record.generation:>{width}} ({record.generation + 1}/"
    scores = _held_out(record.held_out) if record.held_out else []
    parts = _parts(generation_row(record), config)
    return "  ".join([f"{number_of}{record.generations})", *parts, *scores, left]).rstrip()


def _parts(row: Row, config: Config) -> list[str]:
    """Describe what a generation measured, in parts of a line."""
    parts = [_fitness(row, config), _search(row, config), _cost_weight(row)]
    return [part for part in (*parts, f"{number(row['tokens_per_s'])} tokens/s") if part]


class LiveView(SilentView):
    """A panel on the terminal that is updated several times per second."""

    def __init__(self, console: Console, run: RunDirectory) -> None:
        self.console = console
        self.run = run
        self.rows = run.generations()[-WINDOW:]
        self.scores = [row.score for row in run.held_out()]
        self.findings: Sequence[Finding] = ()
        self.record: GenerationRecord | None = None
        self.trials: list[SigmaTrial] = []
        self.footer = "Ctrl-C finishes the generation and stops."
        self._clock = Clock(run)

    def start(self) -> None:
        """Show the panel."""
        rate = FRAMES_PER_SECOND
        self._live = Live(console=self.console, get_renderable=self.render, refresh_per_second=rate)
        self._live.start()

    def generation(self, record: GenerationRecord, findings: Sequence[Finding] = ()) -> None:
        """Show a new generation."""
        self._clock.tick(record.generation + 1)
        self.record, self.trials, self.findings = record, [], findings
        self.rows = [*self.rows, generation_row(record)][-WINDOW:]
        if record.held_out is not None or not self.scores:
            self.scores = [row.score for row in self.run.held_out()]
        self._live.refresh()

    def trial(self, trial: SigmaTrial) -> None:
        """Show a sigma whose trial begins, or the result of a trial."""
        if self.trials and self.trials[-1].kl is None:
            self.trials.pop()
        self.trials.append(trial)
        self._live.refresh()

    def stopping(self) -> None:
        """Change the footer; the next frame shows it."""
        self.footer = STOPPING

    def close(self) -> None:
        """Leave the last frame on the screen, without the hint about Ctrl-C."""
        self.footer = ""
        self._live.stop()

    def render(self) -> RenderableType:
        """Build one frame; a low terminal cuts it at the bottom."""
        config = self.run.config
        title = Text(f"germline · {config.task.title} · {config.model} · {config.space.kind}")
        title.truncate(self.console.width - 6, overflow="ellipsis")
        hint = [Text(self.footer, style="dim")] * bool(self.footer)
        return Panel(Group(*hint, self._clock.bar, *self._lines()), title=title, title_align="left")

    def _lines(self) -> Iterator[Text]:
        if self.record is None:
            doing = "the first generation" if self.scores else "the score before training"
            yield Text(f"running: {doing}", style="dim")
        for trial in self.trials[-2:]:
            yield Text(_trial_line(trial).strip())
        if self.record is not None:
            row = self.rows[-1]
            rubric = "  ".join(f"{name} {number(p)}" for name, p in row.get("parts", {}).items())
            options = text_format.most_likely_options(row.get("option_probabilities", {}))
            for part in (*_parts(row, self.run.config), rubric, _signal(self.rows), *options):
                if part:
                    yield Text(part)
            yield Text(self._clock.left, style="dim")
        done = self.record.generation + 1 if self.record else 0
        for line in text_format.score_lines(self.scores, counted_by(self.run.config), done):
            yield Text(line, style="bold blue")
        for finding in self.findings:
            yield Text(f"{finding.level}: {finding.sentence}", style="red")
        if self.record is not None and (rollouts := self.run.last_rollouts):
            yield _sample(rollouts, self.console.width - 4)


def _trial_line(trial: SigmaTrial) -> str:
    """Describe a trial of sigma that begins, or its result."""
    if trial.kl is None:
        return f"calibrating sigma: measuring the KL divergence of sigma {trial.sigma:g} ..."
    source = ", kept from an earlier run" if trial.is_kept else ""
    return f"  sigma {trial.sigma:g}: KL {number(trial.kl)} nats per token{source}"


def _fitness(row: Row, config: Config) -> str:
    """Describe the fitness of members; samples of one model have no spread to show."""
    fitness = {name: number(value) for name, value in row["fitness"].items()}
    parts = [f"fitness {fitness['mean']}"]
    if config.method.members_generate:
        between = f"{fitness['p20']} to {fitness['p80']}"
        parts.append(f"20-80 % of members {between}  best {fitness['max']}")
    return "  ".join(parts)


def _search(row: Row, config: Config) -> str:
    """Describe sigma with its unit, the length of the step, and the learning rate."""
    parts = []
    if config.method.perturbs:
        parts.append(f"sigma {number(row['sigma'])}{OF_WEIGHTS.get(config.search.unit, '')}")
    if (step := row.get("step_in_sigmas")) is not None:
        parts.append(f"step {number(step)} sigmas")
    if row["learning_rate"] is not None:
        parts.append(f"learning rate {number(row['learning_rate'])}")
    return "  ".join(parts)


def _cost_weight(row: Row) -> str:
    """Describe lambda and the mean cost of the center; empty where the reward has no lambda."""
    if "lambda" not in row:
        return ""
    cost = row["center_cost"]
    of_center = "" if cost is None else f"  cost of the center {number(cost)}"
    return f"lambda {number(row['lambda'])}{of_center}"


def _held_out(score: HeldOutScore) -> list[str]:
    """Format a held-out score, those of the same completions by scorers, and of `retained`."""
    scores = [f"held-out {one.metric} {text_format.score(one)}" for one in (score, *score.scorers)]
    kept = [text_format.retained_change(name, [one]) for name, one in score.retained.items()]
    return [*scores, *(f"retained {one}" for one in kept)]


def _signal(rows: Sequence[Row]) -> str:
    """Summarize the signals of the latest generations."""
    tied = mean_signal(rows, "groups_without_signal")
    differ = mean_signal(rows, "informative_examples") if tied is None else 1 - tied
    parts = [
        ("rewards differ on {} of examples", differ, text_format.percent),
        ("agreement of halves {}", mean_signal(rows, "agreement"), number),
        ("walk {}", mean_signal(rows[-1:], "walk"), number),
    ]
    return "  ".join(text.format(write(value)) for text, value, write in parts if value is not None)


def _sample(rollouts: Sequence[Row], width: int) -> Text:
    """Show the middle one of rollouts that are sorted by reward, which is typical."""
    middle = len(rollouts) // 2
    prompts = text_format.without_common_start([row["prompt"] for row in rollouts])
    return Text.assemble(
        (text_format.one_line_excerpt(prompts[middle], width), "dim"),
        "\n",
        text_format.one_line_excerpt(rollouts[middle]["completion"], width),
        "\n",
        (f"reward {number(rollouts[middle]['reward'])}", "dim"),
    )
