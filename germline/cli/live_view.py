"""Show the progress of a training on a terminal, as a panel that is updated in place."""

import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from germline.cli import text_format
from germline.cli.progress_view import (
    STOPPING,
    RemainingTime,
    cost_weight,
    tokens_per_s,
    trial_begin,
    trial_result,
    unit_of_sigma,
)
from germline.record import RunDirectory
from germline.record.atomic_files import Row
from germline.record.best_generation import best_score, signed_score
from germline.record.metrics_rows import (
    calibrated_kl,
    fitness_summary,
    generation_row,
    scores_by_scorer,
)
from germline.report.advice import NEARLY_ALL, WINDOW, mean, percent, with_update
from germline.report.prompt_option_charts import most_likely_options
from germline.report.score_decline_advice import ScoreDeclineAdvice, score_decline_advice
from germline.report.score_divergence_advice import (
    ScoreDivergenceAdvice,
    score_divergence_advice,
)
from germline.report.text_format import counted_by
from germline.signal_types import SigmaTrial
from germline.types import GenerationRecord, HeldOutScore

LOCAL_MODES = 3
"""Index of the local modes in what `termios.tcgetattr` returns."""

FRAMES_PER_SECOND = 4

NARROW = 42
"""Columns beside the headings below which the times have no room beside the bar."""


@dataclass
class LiveView:
    """A panel on the terminal that is updated several times per second."""

    console: Console
    run: RunDirectory
    clock: RemainingTime = field(default_factory=RemainingTime)
    scores: list[HeldOutScore] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    worse: ScoreDeclineAdvice | None = None
    divergences: list[ScoreDivergenceAdvice] = field(default_factory=list)
    record: GenerationRecord | None = None
    sample: Row | None = None
    trials: list[SigmaTrial] = field(default_factory=list)
    done_before: int = 0
    footer: str = "Ctrl-C finishes the generation and stops."

    def start(self) -> None:
        """Show the panel, with the scores of an earlier part of the run."""
        self.scores = self._recorded_scores()
        self.rows = self.run.generations()
        self.done_before = self.run.journal.last_generation() + 1
        self._restore_echo = hide_control_characters(sys.stdin)
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
        self.rows.append(generation_row(record))
        if record.held_out is not None or not self.scores:
            self.scores = self._recorded_scores()
        self.worse = score_decline_advice(self.run.config, self.run.path, self.rows, self.scores)
        self.divergences = score_divergence_advice(self.run.config, self.run.path, self.scores)
        # Rollouts are sorted by reward: the middle one is typical.
        if rollouts := self.run.last_rollouts:
            prompts = text_format.without_common_start([row["prompt"] for row in rollouts])
            middle = len(rollouts) // 2
            self.sample = {**rollouts[middle], "prompt": prompts[middle]}
        self._live.refresh()

    def trial(self, trial: SigmaTrial) -> None:
        """Show a sigma whose trial begins, or the result of a trial."""
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
        self._restore_echo()

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
                grid.add_row("search", Text(search(self.rows, unit_of_sigma(self.run.config))))
            grid.add_row("fitness", _fitness(self.record, self.run.config.method.graded))
            means = [row["fitness"]["mean"] for row in self.rows]
            grid.add_row("", Text(text_format.sparkline(means, min(width, 60)), style="blue"))
            if self.record.signals:
                unit = unit_of_sigma(self.run.config)
                signal = _signal(self.rows, self.run.config.record.edge, unit)
                grid.add_row("signal", signal)
            for name, text in _strategy_lines(self.record.strategy_metrics, self.rows):
                grid.add_row(name, Text(text))
            grid.add_row("speed", _speed(self.record))
        grid.add_row("held-out", self._held_out())
        for name, warning in self._warnings():
            grid.add_row(name, warning)
        if self.sample is not None:
            grid.add_row("sample", _sample(self.sample, width))
        lines: list[RenderableType] = [grid]
        if self.footer:
            # A low terminal cuts the panel at the bottom: the answer to Ctrl-C stands at the top.
            at = 0 if self.footer == STOPPING else 1
            lines.insert(at, Text(self.footer, style="dim"))
        return Panel(Group(*lines), title=self._title(), title_align="left")

    def _title(self) -> Text:
        config = self.run.config
        title = Text(f"germline · {config.task.title} · {config.model} · {config.space.kind}")
        title.truncate(self.console.width - 6, overflow="ellipsis")
        return title

    def _progress(self, width: int) -> RenderableType:
        done = self.record.generation + 1 if self.record is not None else self.done_before
        total = self.run.config.generations
        times = f"{text_format.duration(self.clock.elapsed_s)} elapsed"
        if self.trials and self.trials[-1].kl is None:
            times += ", calibrating sigma"
        elif self.record is None:
            # A run begins with the score of its start; after that its first generation runs.
            scoring = not self.trials and not self.done_before
            times += ", scoring the base model" if scoring else f", generation {done} is running"
        elif self.clock.left_s is not None:
            times += f", {text_format.duration(self.clock.left_s)} left"
        row = Table.grid(padding=(0, 2))
        bar = ProgressBar(total=total, completed=done, width=min(30, width // 3))
        if width < NARROW:
            row.add_row(Text(f"{done}/{total}"), bar)
            return Group(row, Text(times))
        row.add_row(Text(f"{done}/{total}"), bar, Text(times))
        return row

    def _calibration(self) -> str:
        """Describe the latest trials of sigma; empty once the first generation uses the result."""
        if not self.trials or (self.record is not None and self.trials[-1].kl is not None):
            return ""
        latest = self.trials[-1]
        lines = [
            trial_result(trial, self.run.config)
            for trial in self.trials[-2:]
            if trial.kl is not None
        ]
        if latest.kl is None:
            lines.append(trial_begin(len(self.trials), latest))
        return "\n".join(lines)

    def _held_out(self) -> Text:
        if not self.scores:
            return Text("-")
        first, last = self.scores[0], self.scores[-1]
        text = f"{last.metric} {text_format.score(last)}"
        if first.generation != last.generation:
            text += f", before training {text_format.score(first)}"
        best = best_score(self.scores)
        same = best is not None and signed_score(best) in map(signed_score, (first, last))
        if best is not None and not same:
            text += f", best {text_format.number(best.mean)} after {best.generation}"
        error = text_format.kind_of_error(first, last)
        text += f"  ({error}, n {last.n}, {counted_by(self.run.config)} {last.generation})"
        scorers = (
            text_format.scorer_line(*dict.fromkeys((found[0], found[-1])))
            for found in scores_by_scorer(self.scores).values()
        )
        return Text("\n".join([text, *(line.removeprefix("held-out ") for line in scorers)]))

    def _warnings(self) -> Iterator[tuple[str, Text]]:
        """Yield the lines about scores that get worse."""
        if self.worse is not None:
            yield "worse", Text(f"{self.worse.what} {self.worse.why}", style="red")
            for command in self.worse.commands:
                yield "", Text(command, style="yellow")
        for one in self.divergences:
            yield "worse", Text(one.what, style="red")

    def _recorded_scores(self) -> list[HeldOutScore]:
        return [row.score for row in self.run.held_out()]


def hide_control_characters(keyboard: TextIO) -> Callable[[], None]:
    """Keep the terminal from echoing Ctrl-C as ^C, and return a function that undoes this.

    The two characters move the cursor to the next line when the panel is as wide as the terminal,
    and the next frame would then leave the upper border of this one on the screen.
    """
    try:
        terminal = keyboard.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        return lambda: None  # The input is not a terminal.
    now = termios.tcgetattr(terminal)
    now[LOCAL_MODES] &= ~termios.ECHOCTL
    termios.tcsetattr(terminal, termios.TCSANOW, now)
    return lambda: termios.tcsetattr(terminal, termios.TCSANOW, before)


def search(rows: Sequence[Row], unit: str = "") -> str:
    """Format sigma, the length of the latest step, and the learning rate.

    Args:
        rows: generations in order, at least one.
        unit: of sigma, with a leading space; empty: that of the weights.
    """
    latest = rows[-1]
    parts = [f"sigma {text_format.number(latest['sigma'])}{unit}"]
    calibrated = next((row for row in reversed(rows) if row.get("calibration")), None)
    if calibrated and (kl := calibrated_kl(calibrated, latest["sigma"])) is not None:
        change = latest["sigma"] / calibrated["sigma"]
        first = text_format.number(calibrated["sigma"])
        since = f" to {first}, {'grown' if change > 1 else 'shrunk'} since" if change != 1 else ""
        parts[0] += f" (calibrated{since}; KL about {text_format.number(kl)} nats per token)"
    if "step_in_sigmas" in latest:
        parts.append(f"step {text_format.number(latest['step_in_sigmas'])} sigmas")
    if latest["learning_rate"] is not None:
        parts.append(f"learning rate {text_format.number(latest['learning_rate'])}")
    return "  ".join(parts)


def _fitness(record: GenerationRecord, graded: str) -> Text:
    fitness = {
        name: text_format.number(value) for name, value in fitness_summary(record.fitness).items()
    }
    return Text.assemble(
        (fitness["mean"], "bold blue"),
        f"  20-80 % of {graded}s {fitness['p20']} to {fitness['p80']}",
        f"  best {fitness['max']}",
    )


def _signal(rows: Sequence[Row], edge: float | None, unit: str) -> Text:
    """Summarize the latest generations in a line.

    Args:
        rows: generations in order.
        edge: sigma at which members with random noise break, if known.
        unit: of the edge and the walk, with a leading space; empty: that of the weights.
    """
    latest = rows[-WINDOW:]
    limit = unit if edge is None else f" of the edge {text_format.number(edge)}{unit}"
    moved, empty = mean(with_update(latest), "step.moved"), mean(latest[-1:], "empty")
    differ, who = mean(latest[-1:], "informative_examples"), "members"
    if (tied := mean(latest[-1:], "groups_without_signal")) is not None:
        differ, who = 1 - tied, "samples"
    parts = [
        (f"{who} differ on {{}} of examples", differ, percent),
        ("{} of pairs differ", mean(latest[-1:], "informative_pairs"), percent),
        ("agreement of halves {}", mean(latest, "agreement"), text_format.number),
        (f"walk {{}}{limit}", mean(latest[-1:], "walk") or None, text_format.number),
        # In most runs all weights change, which is not worth showing.
        ("{} of weights changed", None if moved is None or moved > NEARLY_ALL else moved, percent),
        ("{} of completions empty", empty or None, percent),
    ]
    known = [text.format(write(value)) for text, value, write in parts if value is not None]
    return Text("  ".join(known))


def _strategy_lines(metrics: Mapping[str, Any], rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Return the lines about the parts of the reward, lambda and prompt options."""
    parts = rows[-1].get("parts", {}) if rows else {}
    lines = {
        "parts": "  ".join(f"{name} {text_format.number(one)}" for name, one in parts.items()),
        "cost": cost_weight(metrics, rows[0].get("lambda") if rows else None),
        "options": ", ".join(most_likely_options(metrics.get("option_probabilities", {}))),
    }
    return [(name, text) for name, text in lines.items() if text]


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
