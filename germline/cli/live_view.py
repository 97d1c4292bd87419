"""Show the progress of a training on a terminal: a bar and a table that are updated in place."""

import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from germline.cli import text_format
from germline.cli.progress_view import (
    STOPPING,
    Clock,
    SilentView,
    cost_weight,
    speed,
    trial_line,
    unit_of_sigma,
)
from germline.record import RunDirectory
from germline.record.atomic_files import Row
from germline.record.best_generation import best_score
from germline.record.metrics_rows import fitness_summary, generation_row, scores_by_scorer
from germline.report.finding_rules import WINDOW, mean_signal
from germline.report.findings import Finding, LiveFindings
from germline.report.text_format import counted_by, most_likely_options, percent
from germline.signal_types import SigmaTrial
from germline.types import GenerationRecord

LOCAL_MODES = 3
"""Index of the local modes in what `termios.tcgetattr` returns."""

FRAMES_PER_SECOND = 4

SPARKS = 60
"""Largest number of bars of the curve of the fitness."""


class LiveView(SilentView):
    """A panel on the terminal that is updated several times per second."""

    def __init__(self, console: Console, run: RunDirectory) -> None:
        self.console = console
        self.run = run
        rows = run.generations()
        self.rows = rows[-WINDOW:]
        self.means = [row["fitness"]["mean"] for row in rows]
        self.scores = [row.score for row in run.held_out()]
        self.findings: list[Finding] = []
        self.record: GenerationRecord | None = None
        self.trials: list[SigmaTrial] = []
        self.footer = "Ctrl-C finishes the generation and stops."
        self._clock = Clock(console, run.config.generations, run.journal.last_generation() + 1)
        self._live_findings = LiveFindings(run)

    def start(self) -> None:
        """Show the panel."""
        self._restore_echo = hide_control_characters(sys.stdin)
        self._live = Live(
            console=self.console,
            get_renderable=self.render,
            refresh_per_second=FRAMES_PER_SECOND,
        )
        self._live.start()

    def generation(self, record: GenerationRecord) -> None:
        """Show a new generation."""
        row = generation_row(record)
        self._clock.tick(record.generation + 1)
        self.record, self.trials = record, []
        self.rows = [*self.rows, row][-WINDOW:]
        self.means.append(row["fitness"]["mean"])
        if record.held_out is not None or not self.scores:
            self.scores = [row.score for row in self.run.held_out()]
        self.findings = self._live_findings.tell(row)
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
        self._restore_echo()

    def render(self) -> RenderableType:
        """Build one frame."""
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column(ratio=1)
        for name, text in self._lines():
            grid.add_row(name, text)
        if self.record is not None and (rollouts := self.run.last_rollouts):
            grid.add_row("sample", _sample(rollouts, max(20, self.console.width - 18)))
        config = self.run.config
        title = Text(f"germline · {config.task.title} · {config.model} · {config.space.kind}")
        title.truncate(self.console.width - 6, overflow="ellipsis")
        # A low terminal cuts the panel at the bottom, so the answer to Ctrl-C is at the top.
        lines = [Text(self.footer, style="dim")] * bool(self.footer)
        return Panel(Group(*lines, self._clock.bar, grid), title=title, title_align="left")

    def _lines(self) -> Iterator[tuple[str, Text]]:
        """Yield the name and the content of each line that has any."""
        if self.record is None:
            doing = "the first generation" if self.scores else "the score before training"
            yield "", Text(f"running: {doing}", style="dim")
        for trial in self.trials[-2:]:
            yield "calibration", Text(trial_line(trial).strip())
        if self.record is not None:
            yield from self._generation_lines(self.record, self.rows[-1])
        if self.scores:
            yield "held-out", Text("\n".join(self._held_out()))
        for finding in self.findings:
            yield finding.level, Text(finding.sentence, style="red")

    def _generation_lines(self, record: GenerationRecord, row: Row) -> Iterator[tuple[str, Text]]:
        graded = self.run.config.method.graded
        fitness = {
            name: text_format.number(v) for name, v in fitness_summary(record.fitness).items()
        }
        yield "speed", Text("  ".join(filter(None, (speed(record), self._clock.left))))
        yield "search", Text(_search(row, unit_of_sigma(self.run.config)))
        yield (
            "fitness",
            Text.assemble(
                (fitness["mean"], "bold blue"),
                f"  20-80 % of {graded}s {fitness['p20']} to {fitness['p80']}"
                f"  best {fitness['max']}",
            ),
        )
        width = min(SPARKS, max(20, self.console.width - 18))
        yield "", Text(text_format.sparkline(self.means, width), style="blue")
        if signal := _signal(self.rows):
            yield "signal", Text(signal)
        for name, text in _method_lines(record.strategy_metrics, row).items():
            if text:
                yield name, Text(text)

    def _held_out(self) -> Iterator[str]:
        first, last, best = self.scores[0], self.scores[-1], best_score(self.scores)
        text = f"{last.metric} {text_format.score(last)}"
        if first.generation != last.generation:
            text += f", before training {text_format.score(first)}"
        if best is not None and best.mean not in (first.mean, last.mean):
            text += f", best {text_format.number(best.mean)} after {best.generation}"
        error, counted = text_format.kind_of_error(first, last), counted_by(self.run.config)
        yield f"{text}  ({error}, n {last.n}, {counted} {last.generation})"
        for found in scores_by_scorer(self.scores).values():
            line = text_format.scorer_line(*dict.fromkeys((found[0], found[-1])))
            yield line.removeprefix("held-out ")


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


def _search(row: Row, unit: str) -> str:
    """Format sigma, the length of the step, and the learning rate."""
    parts = [
        ("sigma {}" + unit, row["sigma"]),
        ("step {} sigmas", row.get("step_in_sigmas")),
        ("learning rate {}", row["learning_rate"]),
    ]
    return "  ".join(
        text.format(text_format.number(value)) for text, value in parts if value is not None
    )


def _signal(rows: Sequence[Row]) -> str:
    """Summarize the signals of the latest generations."""
    tied = mean_signal(rows, "groups_without_signal")
    differ = mean_signal(rows, "informative_examples") if tied is None else 1 - tied
    parts = [
        ("rewards differ on {} of examples", differ, percent),
        ("agreement of halves {}", mean_signal(rows, "agreement"), text_format.number),
        ("walk {}", mean_signal(rows[-1:], "walk"), text_format.number),
    ]
    return "  ".join(text.format(write(value)) for text, value, write in parts if value is not None)


def _method_lines(metrics: Mapping[str, Any], row: Row) -> dict[str, str]:
    """Return the lines about the parts of the reward, lambda and prompt options."""
    parts = row.get("parts", {})
    return {
        "parts": "  ".join(f"{name} {text_format.number(one)}" for name, one in parts.items()),
        "cost": cost_weight(metrics),
        "options": ", ".join(most_likely_options(metrics.get("option_probabilities", {}))),
    }


def _sample(rollouts: Sequence[Row], width: int) -> Text:
    """Show the middle one of rollouts that are sorted by reward, which is typical."""
    middle = len(rollouts) // 2
    prompts = text_format.without_common_start([row["prompt"] for row in rollouts])
    return Text.assemble(
        (text_format.one_line_excerpt(prompts[middle], width), "dim"),
        "\n",
        text_format.one_line_excerpt(rollouts[middle]["completion"], width),
        "\n",
        (f"reward {text_format.number(rollouts[middle]['reward'])}", "dim"),
    )
