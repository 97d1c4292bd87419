"""What a training shows while it runs."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from germline.cli.run_loop import ProgressView
from germline.config import load_config
from germline.record import RunDirectory
from germline.report.text_format import without_common_start
from tests.synthetic_runs import DIGEST, record


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", load_config({"generations": 10}), DIGEST, 1)


def test_the_time_left_is_that_of_the_generations_after_the_first(run: RunDirectory) -> None:
    now, view = [1000.0], ProgressView(run, Console(), quiet=True)
    view.bar.get_time = lambda: now[0]
    assert view.left == ""
    for generation in range(3):
        now[0] += 2.5 if generation else 100.0  # the first one has the start of the run
        view.generation(replace(record(generation), generations=10))
    assert view.left == "0:18 min left"


def test_prompts_with_the_same_instructions_are_shown_from_where_they_differ() -> None:
    head = "You are a helpful assistant. You think first and then answer. Using the numbers "
    prompts = [f"{head}[{n} 2], create an equation that equals {9 - n}." for n in (3, 5)]
    shown = without_common_start(prompts)
    assert shown[0] == "… answer. Using the numbers [3 2], create an equation that equals 6."
    assert without_common_start(prompts[:1]) == prompts[:1]
    assert without_common_start(["What is 3?", "What is 4?"]) == ["What is 3?", "What is 4?"]
    assert without_common_start([]) == []
