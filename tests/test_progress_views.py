"""What a training shows while it runs: the live view of a terminal, and plain lines."""

import io
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from germline.cli.progress_view import Clock, LiveView, generation_line
from germline.cli.run_loop import print_result
from germline.config import load_config
from germline.record import RunDirectory
from germline.report.text_format import kind_of_error, one_line_excerpt, without_common_start
from tests.synthetic_runs import BATCH, DIGEST, record, rollout, score


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", load_config({"generations": 10}), DIGEST, 1)


CONFIG = load_config({"generations": 10})


def test_the_time_left_is_that_of_the_generations_after_the_first(run: RunDirectory) -> None:
    now = [1000.0]
    clock = Clock(Console(file=io.StringIO()), run)
    clock.bar.get_time = lambda: now[0]
    assert clock.left == ""
    for done in (1, 2, 3):
        now[0] += 100.0 if done == 1 else 2.5  # the first one has the start of the run
        clock.tick(done)
    assert clock.left == "0:18 min left"


def terminal(width: int = 90) -> Console:
    return Console(width=width, force_terminal=True, record=True, file=io.StringIO())


def test_a_generation_without_fitness_has_a_line_too() -> None:
    nothing = record(0, [[math.nan, math.nan], [math.nan, math.nan]])
    assert "fitness -  20-80 % of members - to -  best -" in generation_line(nothing, "", CONFIG)


def test_scores_whose_errors_differ_in_kind_are_not_given_the_name_of_the_last(
    run: RunDirectory,
) -> None:
    # A reward of 0, 0.5 and 1 that is 1 throughout in the end has an interval there.
    ends = (score(0, 0.9), replace(score(1, 1.0), proportion=True))
    for end in ends:
        run.write_held_out(end, [], BATCH)
    run.write(record(0), BATCH)
    file = io.StringIO()
    print_result(Console(file=file, width=200), run, quiet=True)
    said = "(mean and ± standard error, or [95 % interval] where all values are 0 or 1, n 100)"
    assert said in file.getvalue()
    assert kind_of_error(ends[0]) == "standard error"
    assert kind_of_error(ends[1], ends[1]) == "95 % interval"


def test_on_a_narrow_terminal_the_live_view_cuts_no_number(tmp_path: Path) -> None:
    config = load_config({"generations": 20_000})
    run = RunDirectory.create(tmp_path / "run", config, DIGEST, 1)
    console = Console(width=40, record=True, file=io.StringIO())
    view = LiveView(console, run)
    view.start()
    view.generation(record(0))
    console.export_text()
    console.print(view.render())
    shown = console.export_text()
    view.close()
    _title, *lines = shown.splitlines()
    assert "…" not in "".join(lines)
    assert "1/20000" in shown


def test_prompts_with_the_same_instructions_are_shown_from_where_they_differ() -> None:
    head = "You are a helpful assistant. You think first and then answer. Using the numbers "
    prompts = [f"{head}[{n} 2], create an equation that equals {9 - n}." for n in (3, 5)]
    shown = without_common_start(prompts)
    assert shown[0] == "… answer. Using the numbers [3 2], create an equation that equals 6."
    assert without_common_start(prompts[:1]) == prompts[:1]
    assert without_common_start(["What is 3?", "What is 4?"]) == ["What is 3?", "What is 4?"]
    assert without_common_start([]) == []


def test_an_excerpt_ends_with_a_whole_word() -> None:
    assert one_line_excerpt("the quick brown fox", 15) == "the quick…"
    assert one_line_excerpt("the quick brown fox", 10) == "the quick…"
    assert one_line_excerpt("x" * 20, 10) == "x" * 9 + "…"


@pytest.mark.parametrize("width", [40, 80, 140])
def test_the_live_view_and_the_summary_break_no_word(run: RunDirectory, width: int) -> None:
    run.write_held_out(score(0, 0.25), [rollout(0, 7, 0.0)], BATCH)
    failing = record(0, held_out=score(1, 0.75))
    run.write(failing, BATCH)
    console = Console(record=True, width=width, force_terminal=True, color_system=None)
    view = LiveView(console, run)
    view.start()
    view.generation(failing)
    view.close()
    console.export_text()
    console.print(view.render())
    print_result(console, run, quiet=True)
    lines = console.export_text().splitlines()
    assert max(map(len, lines[:-2])) <= width
    words = {"generations", "members", "standard", "question", "directory"}
    assert words <= set(re.findall(r"\w+", " ".join(lines)))


def test_a_plain_line_names_what_the_fitness_is_of() -> None:
    samples = load_config({"method": "zo_grpo"})
    assert "20-80 % of samples" in generation_line(record(0), "", samples)
