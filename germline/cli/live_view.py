"""What a person sees while a run trains: a live view, plain lines, or nothing."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from germline.cli import text_format
from germline.config import AutoSigma, Config, Nes
from germline.record import RunDirectory
from germline.record.atomic_files import Row
from germline.record.best_generation import best_score
from germline.record.metrics_rows import (
    fitness_summary,
    generation_row,
    mean_sigma,
    step_in_sigmas,
)
from germline.report.advice import NEARLY_ALL, WINDOW, advice, mean, percent, with_update
from germline.report.prompt_option_charts import most_likely_options
from germline.report.score_decline_advice import ScoreDeclineAdvice, score_decline_advice
from germline.report.text_format import counted_by
from germline.signal_types import SigmaTrial
from germline.strategies.calibrated_sigma import TRIALS
from germline.types import GenerationRecord, HeldOutScore

FRAMES_PER_SECOND = 4
STOPPING = "Finishing this generation, then stopping. Ctrl-C again stops at once."


@runtime_checkable
class ProgressView(Protocol):
    """Shows a run while it goes on."""

    def start(self) -> None:
        """Begin to show."""

    def generation(self, record: GenerationRecord) -> None:
        """Take in one finished generation."""

    def trial(self, trial: SigmaTrial) -> None:
        """Take in a sigma that is being tried, or what was found."""

    def close(self) -> None:
        """Stop showing."""

    def stopping(self) -> None:
        """Say that the run stops after this generation; called from a signal handler."""


class SilentView:
    """Shows nothing until the run is over."""

    def start(self) -> None:
        """Say nothing."""

    def generation(self, record: GenerationRecord) -> None:
        """Say nothing."""

    def trial(self, trial: SigmaTrial) -> None:
        """Say nothing."""

    def stopping(self) -> None:
        """Confirm that Ctrl-C was heard: even a quiet program must answer."""
        # A signal may arrive inside a print; the system call is safe there, a second print is not.
        os.write(2, f"\n{STOPPING}\n".encode())

    def close(self) -> None:
        """Have nothing to clear."""


class LineView(SilentView):
    """One plain line per generation, for files and pipes."""

    def __init__(self, console: Console, run: RunDirectory | None = None) -> None:
        self._console = console
        self._run = run
        self._clock = RemainingTime()
        self._rows: list[Row] = []
        self._scores: list[HeldOutScore] = []
        self._said: set[str] = set()
        self._trials = 0

    def start(self) -> None:
        """Recall the generations of an earlier part of the run."""
        if self._run is not None:
            self._rows = self._run.generations()
            self._scores = [one.score for one in self._run.held_out()]

    def generation(self, record: GenerationRecord) -> None:
        """Print the line of a generation, and what is newly wrong with the signal."""
        self._clock.tick(record)
        self._rows.append(generation_row(record))
        self._print(generation_line(record, self._clock.left_s))
        found = advice(self._rows[-WINDOW:])
        if self._run is not None:
            if record.held_out is not None or not self._scores:
                self._scores = [one.score for one in self._run.held_out()]
            worse = score_decline_advice(self._run.config, self._run.path, self._rows, self._scores)
            if worse is not None:
                found["worse"] = "\n  ".join((worse.text, *worse.commands))
        for about, sentence in found.items():
            if about not in self._said:
                self._print(f"  {sentence}")
        self._said = set(found)

    def trial(self, trial: SigmaTrial) -> None:
        """Print what is tried, as it can take minutes, and what was found."""
        if trial.kl is None:
            self._trials += 1
            self._print(f"calibrating sigma, {trying(self._trials, trial)} ...")
        else:
            self._print(f"  {tried(trial, self._run.config if self._run else None)}")

    def _print(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)


class RemainingTime:
    """Estimates the time left from the generations seen so far."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.left_s: float | None = None
        self._first: tuple[int, float] | None = None

    def tick(self, record: GenerationRecord) -> None:
        """Take note that a generation is done.

        The first one is left out of the mean where possible: it pays for warming up.
        """
        now = time.monotonic()
        left = record.generations - record.generation - 1
        if self._first is None:
            self._first = (record.generation, now)
            self.left_s = left * (now - self.started)
        else:
            generation, then = self._first
            self.left_s = left * (now - then) / (record.generation - generation)

    @property
    def elapsed_s(self) -> float:
        """Seconds since training was begun here."""
        return time.monotonic() - self.started


@dataclass
class LiveView:
    """A panel on the terminal that keeps itself up to date."""

    console: Console
    run: RunDirectory
    clock: RemainingTime = field(default_factory=RemainingTime)
    scores: list[HeldOutScore] = field(default_factory=list)
    means: list[float | None] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    worse: ScoreDeclineAdvice | None = None
    record: GenerationRecord | None = None
    sample: Row | None = None
    trials: list[SigmaTrial] = field(default_factory=list)
    footer: str = "Ctrl-C finishes the generation and stops."

    def start(self) -> None:
        """Show the panel, with what an earlier part of the run has scored."""
        self.scores = self._recorded_scores()
        self.rows = self.run.generations()
        self._live = Live(
            console=self.console,
            get_renderable=self.render,
            refresh_per_second=FRAMES_PER_SECOND,
        )
        self._live.start()

    def generation(self, record: GenerationRecord) -> None:
        """Show a new generation."""
        self.clock.tick(record)
        self.record = record
        self.means.append(fitness_summary(record.fitness)["mean"])
        self.rows.append(generation_row(record))
        if record.held_out is not None or not self.scores:
            self.scores = self._recorded_scores()
        self.worse = score_decline_advice(self.run.config, self.run.path, self.rows, self.scores)
        # Rollouts come ranked by reward: the middle one is what is typical, not what flatters.
        rollouts = self.run.last_rollouts
        self.sample = rollouts[len(rollouts) // 2] if rollouts else None
        self._live.refresh()

    def trial(self, trial: SigmaTrial) -> None:
        """Show a sigma that is being tried, or what was found."""
        if self.trials and self.trials[-1].kl is None:
            self.trials.pop()
        self.trials.append(trial)
        self._live.refresh()

    def stopping(self) -> None:
        """Change the last line; the next frame shows it."""
        self.footer = STOPPING

    def close(self) -> None:
        """Leave the last frame on the screen, without the hint about Ctrl-C."""
        self.footer = ""
        self._live.stop()

    def render(self) -> RenderableType:
        """Build one frame."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(ratio=1)
        width = max(20, self.console.width - 18)
        grid.add_row("generations", self._progress(width))
        if calibration := self._calibration():
            grid.add_row("calibration", Text(calibration))
        if self.record is not None:
            if self.rows:
                grid.add_row("search", Text(search(self.rows)))
            grid.add_row("fitness", _fitness(self.record))
            grid.add_row("", Text(text_format.sparkline(self.means, min(width, 60)), style="blue"))
            if self.record.signals:
                edge = self.run.config.record.edge
                grid.add_row("signal", _signal(self.rows[-WINDOW:], edge))
            if chosen := most_likely_options(
                self.record.strategy_metrics.get("option_probabilities", {})
            ):
                grid.add_row("options", Text(", ".join(chosen)))
            grid.add_row("speed", _speed(self.record))
        grid.add_row("held-out", self._held_out())
        if self.worse is not None:
            grid.add_row("worse", Text(f"{self.worse.what} {self.worse.why}", style="red"))
            for command in self.worse.commands:
                grid.add_row("", Text(command, style="yellow"))
        if self.sample is not None:
            grid.add_row("sample", _sample(self.sample, width))
        footer = [Text(self.footer, style="dim")] if self.footer else []
        config = self.run.config
        name = f"{config.task.title} · {config.model} · {config.space.kind}"
        return Panel(Group(grid, *footer), title=Text(f"germline · {name}"), title_align="left")

    def _progress(self, width: int) -> RenderableType:
        done = self.record.generation + 1 if self.record is not None else 0
        total = self.run.config.generations
        row = Table.grid(padding=(0, 2))
        times = f"{text_format.duration(self.clock.elapsed_s)} gone"
        if self.trials and self.trials[-1].kl is None:
            times += ", calibrating sigma"
        elif self.record is None:
            times += ", scoring the start"
        elif self.clock.left_s is not None:
            times += f", {text_format.duration(self.clock.left_s)} left"
        bar = ProgressBar(total=total, completed=done, width=min(30, width // 3))
        row.add_row(Text(f"{done}/{total}"), bar, Text(times))
        return row

    def _calibration(self) -> str:
        """Say which sigmas were tried, until generations say what came of it."""
        if not self.trials or (self.record is not None and self.trials[-1].kl is not None):
            return ""
        trial = self.trials[-1]
        found = [tried(one, self.run.config) for one in self.trials[-2:] if one.kl is not None]
        if trial.kl is None:
            found.append(trying(len(self.trials), trial))
        return "\n".join(found)

    def _held_out(self) -> Text:
        if not self.scores:
            return Text("-")
        first, last = self.scores[0], self.scores[-1]
        text = f"{last.metric} {text_format.score(last)}"
        if first.generation != last.generation:
            text += f", at the start {text_format.score(first)}"
        best = best_score(self.scores)
        if best is not None and best not in (first, last):
            text += f", best {text_format.number(best.mean)} after {best.generation}"
        return Text(f"{text}  (n {last.n}, {counted_by(self.run.config)} {last.generation})")

    def _recorded_scores(self) -> list[HeldOutScore]:
        return [one.score for one in self.run.held_out()]


def trying(number: int, trial: SigmaTrial) -> str:
    """Say which sigma is being tried."""
    return f"trial {number} of at most {TRIALS}: members of sigma {trial.sigma:g} read texts"


def tried(trial: SigmaTrial, config: Config | None) -> str:
    """Say what one sigma was found to do."""
    text = f"sigma {trial.sigma:g}: KL {text_format.number(trial.kl)} nats per token"
    section = config.search if config else None
    if isinstance(section, Nes) and isinstance(section.sigma, AutoSigma):
        text += f", {section.sigma.target_kl:g} is wanted"
    return text


def search(rows: Sequence[Row]) -> str:
    """Say how far members are from the center and how far it goes, at present."""
    latest = rows[-1]
    parts = [f"sigma {text_format.number(latest['sigma'])}"]
    calibrated = next((row["calibration"][-1] for row in rows[::-1] if "calibration" in row), None)
    if calibrated and calibrated["kl"] is not None:
        # Near the trial the divergence grows with the square of sigma.
        kl = calibrated["kl"] * (latest["sigma"] / calibrated["sigma"]) ** 2
        parts[0] += f" (calibrated, KL about {text_format.number(kl)} per token)"
    if "step_in_sigmas" in latest:
        parts.append(f"step {text_format.number(latest['step_in_sigmas'])} sigmas")
    if latest["learning_rate"] is not None:
        parts.append(f"learning rate {text_format.number(latest['learning_rate'])}")
    return "  ".join(parts)


def generation_line(record: GenerationRecord, left_s: float | None) -> str:
    """Put one generation into one line."""
    fitness = {
        name: text_format.number(value) for name, value in population_summary(record).items()
    }
    width = len(str(record.generations - 1))
    parts = [
        f"generation {record.generation:>{width}} ({record.generation + 1}/{record.generations})",
        f"fitness {fitness['mean']} [{fitness['p20']}, {fitness['p80']}]",
        f"best {fitness['max']}",
    ]
    parts.append(f"sigma {text_format.number(mean_sigma(record))}")
    if (step := step_in_sigmas(record.update)) is not None:
        parts.append(f"step {text_format.number(step)} sigmas")
    if record.held_out is not None:
        parts.append(f"held-out {record.held_out.metric} {text_format.score(record.held_out)}")
    parts.append(f"{text_format.number(tokens_per_s(record))} tokens/s")
    if left_s is not None:
        parts.append(f"{text_format.duration(left_s)} left")
    return "  ".join(parts)


def population_summary(record: GenerationRecord) -> dict[str, float | None]:
    """Sum up the fitness of a generation."""
    return fitness_summary(record.fitness)


def tokens_per_s(record: GenerationRecord) -> float | None:
    """Return the speed of a generation; None when no time was measured."""
    seconds = record.evaluation.decode_seconds
    return record.evaluation.tokens / seconds if seconds > 0 else None


def _fitness(record: GenerationRecord) -> Text:
    fitness = {
        name: text_format.number(value) for name, value in population_summary(record).items()
    }
    return Text.assemble(
        (fitness["mean"], "bold blue"),
        f"  [{fitness['p20']}, {fitness['p80']}] 20-80 % of members",
        f"  best {fitness['max']}",
    )


def _signal(latest: Sequence[Row], edge: float | None) -> Text:
    """Sum up the latest generations in a line; a second one says what is gravest, if anything.

    Args:
        latest: generations in order.
        edge: sigma at which random members break, where it is known.
    """
    limit = "" if edge is None else f" of {text_format.number(edge)}"
    moved, empty = mean(with_update(latest), "step.moved"), mean(latest[-1:], "empty")
    parts = {
        "examples": (mean(latest[-1:], "informative_examples"), percent),
        "pairs": (mean(latest[-1:], "informative_pairs"), percent),
        "halves agree": (mean(latest, "agreement"), text_format.number),
        "walk": (mean(latest[-1:], "walk") or None, lambda far: text_format.number(far) + limit),
        # What is as it should be in most runs would only take room.
        "weights move": (None if moved is None or moved > NEARLY_ALL else moved, percent),
        "empty": (empty or None, percent),
    }
    known = [
        f"{name} {write(value)}" for name, (value, write) in parts.items() if value is not None
    ]
    warning = next(iter(advice(latest).values()), None)
    return Text.assemble("  ".join(known), (f"\n{warning}" if warning else "", "yellow"))


def _speed(record: GenerationRecord) -> Text:
    return Text(f"{text_format.number(tokens_per_s(record))} tokens/s")


def _sample(row: Row, width: int) -> Text:
    return Text.assemble(
        (text_format.one_line_excerpt(row["prompt"], width), "dim"),
        "\n",
        text_format.one_line_excerpt(row["completion"], width),
        "\n",
        (f"reward {text_format.number(row['reward'])}", "dim"),
    )
