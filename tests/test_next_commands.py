"""The commands that a finished training suggests: they can be pasted, and fit how it ended."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from germline.cli.train_summary import print_next_commands
from germline.config import load_config
from germline.record import RunDirectory
from tests.synthetic_runs import BATCH, DIGEST, rollout, score


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", load_config({"generations": 10}), DIGEST, 1)


def terminal() -> Console:
    return Console(width=90, force_terminal=True, record=True, file=io.StringIO())


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_going_on_is_not_suggested_where_it_would_bend_a_schedule(
    tmp_path: Path, schedule: str
) -> None:
    sigma = {"kind": schedule, "start": 0.01, "end": 0.002}
    config = load_config({"generations": 10, "strategy": {"sigma": sigma}})
    shown = terminal()
    print_next_commands(shown, RunDirectory.create(tmp_path / "run", config, DIGEST, 1))
    printed = shown.export_text()
    assert "germline export" in printed
    assert "germline resume" not in printed


def test_the_next_commands_can_be_pasted(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "my run", load_config({}), DIGEST, 1)
    console = terminal()
    print_next_commands(console, run)
    printed = console.export_text()
    assert f"  germline export '{run.path}' --out my-model" in printed
    assert "did not improve" not in printed


def test_what_comes_next_after_no_improvement_is_a_probe(run: RunDirectory) -> None:
    run.write_held_out(score(0, 0.5), [rollout(0, 7, 0.0)], BATCH)
    run.write_held_out(score(5, 0.75), [rollout(0, 7, 0.0)], BATCH)
    run.write_held_out(score(10, 0.5), [rollout(5, 7, 1.0)], BATCH)
    console = terminal()
    print_next_commands(console, run)
    lines = console.export_text().splitlines()
    assert lines[1].strip().startswith("(the held-out score did not improve: see the signals in")
    assert lines[2] == f"  germline probe {run.path}"
    assert f"  germline export {run.path} --best --out my-model" in lines


def test_the_newest_of_equally_good_generations_is_exported(run: RunDirectory) -> None:
    for generation, mean in (0, 0.5), (5, 0.75), (10, 0.75):
        run.write_held_out(score(generation, mean), [rollout(0, 7, 0.0)], BATCH)
    console = terminal()
    print_next_commands(console, run)
    assert f"  germline export {run.path} --out my-model" in console.export_text().splitlines()
