"""What is said of a run that is getting worse, where it is said, and whether its commands work."""

import io
import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import germline
from germline.cli.application import app
from germline.cli.line_view import LineView
from germline.cli.live_view import LiveView
from germline.cli.train_summary import print_result
from germline.record import RunDirectory
from germline.record.metrics_rows import held_out_row
from germline.report.score_decline_advice import score_decline_advice
from tests.synthetic_runs import record
from tests.test_score_decline import FALLING, HOLDING, shares
from tests.toy_runs import run, settings

LONG = ("generations=20", "held_out.every=2", "strategy.learning_rate=0.2")


def rows(count, **signals):
    """Make up rows of generations; a signal is a value, or one for each of them."""

    def at(value, place):
        return value[place] if isinstance(value, list) else value

    return [
        {
            "generation": place,
            "fitness": {"mean": at(signals.get("fitness", 0.5), place)},
            "sigma": 0.1,
            "learning_rate": 0.01,
            "signals": {
                name: at(signals.get(name), place) for name in ("agreement", "empty", "walk")
            },
        }
        for place in range(count)
    ]


def told(*overrides, path="runs/one", scores=None, **signals):
    config = settings(*overrides)
    return score_decline_advice(config, Path(path), rows(240, **signals), scores or shares(FALLING))


@pytest.fixture(scope="module")
def falling(tmp_path_factory):
    """A run whose held-out scores fell, as they are told to have."""
    path = run(tmp_path_factory.mktemp("falling") / "run", *LONG)
    written = [json.dumps(held_out_row(one)) + "\n" for one in shares(FALLING, every=2)]
    (path / "held_out.jsonl").write_text("".join(written))
    return path


def test_it_is_said_since_when_and_how_sure_and_why():
    found = told("record.edge=0.016", walk=0.02)
    assert found is not None
    assert (
        "The score has declined since update 50: held-out exact went from 0.8 to 0.385 (mean of "
        "the last 2 scores), which is worse by 0.415 (95 %" in found.what
    )
    assert "worse by 0.415 (95 % interval" in found.what
    assert "the same 100 examples compared; p-value" in found.what
    assert found.why == (
        "Noise of the updates has moved the weights by 0.02, and a model with random noise of "
        "0.016 breaks."
    )


def test_a_used_up_walk_wants_a_rate_whose_walk_ends_halfway_to_the_edge():
    found = told("record.edge=0.016", walk=0.02)
    assert found.commands == (
        "germline resume runs/one --from best --out runs/one-from-49 strategy.learning_rate=0.004",
    )


def test_no_signal_wants_a_larger_batch_too():
    found = told(agreement=0.0)
    assert "no signal" in found.why
    assert found.commands[0].endswith("strategy.learning_rate=0.0025 batch_size=8")


def test_overfitting_keeps_the_best_and_decays_to_the_start():
    rising = [0.5 + place / 1000 for place in range(240)]
    found = told("engine=inprocess", fitness=rising)
    keep, on = found.commands
    assert keep == "germline export runs/one --generation 49 --out runs/one-best"
    assert on.endswith("strategy.optimizer.weight_decay=5 strategy.optimizer.decay_to=start")


def test_of_a_hacked_reward_no_run_goes_on():
    rising = [0.5 + place / 1000 for place in range(240)]
    empty = [0.0] * 120 + [0.6] * 120
    found = told("engine=inprocess", fitness=rising, empty=empty)
    assert "hacked" in found.why
    assert [one.split()[1] for one in found.commands] == ["export"]


def test_a_strategy_without_a_rate_gets_a_smaller_sigma():
    found = told("space=full", "strategy={kind: sep_cma, sigma: 0.1, population: 6}")
    assert found.commands[0].endswith("strategy.sigma=0.05")


def test_a_decline_since_before_training_names_the_folder_after_the_start():
    (command,) = told(scores=shares(FALLING[2:])).commands
    assert "--from best --out runs/one-from-start " in command


def test_a_path_with_a_blank_is_quoted():
    assert shlex.split(told(path="my runs/one").commands[0])[2] == "my runs/one"


def test_falling_fitness_alone_goes_on_from_that_generation():
    fitness = [0.9] * 40 + [0.9 - place / 400 for place in range(200)]
    found = told(fitness=fitness, scores=shares(FALLING[:1]))
    assert found.what.startswith("The score has declined since ")
    assert "training fitness" in found.what
    assert f"--from {found.found.since - 1} " in found.commands[0]


def test_members_that_vote_do_not_get_worse():
    section = ("strategy={population: 6, sigma: 0.3}", "method={kind: randopt, ensemble_size: 2}")
    assert told(*section) is None


def test_a_run_that_holds_is_told_nothing():
    assert told(scores=shares(HOLDING)) is None


def test_the_page_says_it_first(falling):
    page = germline.write_report(falling).read_text()
    assert "This run is getting worse" in page
    assert "since update 4" in page
    assert f"germline resume {falling} --from best" in page
    assert page.index("This run is getting worse") < page.index(">Curves</h2>")


def test_the_end_of_a_training_and_the_report_command_say_it(falling):
    file = io.StringIO()
    print_result(Console(file=file, width=200), RunDirectory.open(falling), quiet=True)
    shown = CliRunner().invoke(app, ["report", str(falling)]).output
    for text in (file.getvalue(), shown):
        assert "The score has declined since update 4" in text
        assert f"  germline resume {falling} --from best" in text


def test_no_command_and_no_path_is_wrapped_on_a_narrow_terminal(falling):
    file = io.StringIO()
    narrow = Console(file=file, width=40, force_terminal=True, color_system=None)
    print_result(narrow, RunDirectory.open(falling), quiet=True)
    lines = file.getvalue().splitlines()
    assert f"run directory: {falling}" in lines
    command = next(line for line in lines if line.startswith("  germline resume"))
    assert "strategy.learning_rate=" in command


def test_the_command_that_is_printed_works(falling, tmp_path):
    old = tmp_path / "old"
    shutil.copytree(falling, old)
    found = score_decline_advice(
        settings(*LONG),
        old,
        RunDirectory.open(old).generations(),
        [one.score for one in RunDirectory.open(old).held_out()],
    )
    assert found is not None
    command = shlex.split(found.commands[-1])
    assert command[0] == "germline"
    shown = CliRunner().invoke(app, [*command[1:], "generations=1", "-q"])
    assert shown.exit_code == 0, shown.output
    assert RunDirectory.open(tmp_path / "old-from-3").ancestors[0].generation == 3


class Text:
    def __init__(self, terminal):
        self.file = io.StringIO()
        self.console = Console(
            file=self.file, width=100, force_terminal=terminal, color_system=None
        )

    @property
    def text(self):
        return self.file.getvalue()


def records():
    return [replace(record(place), generations=20) for place in range(20)]


def test_the_live_view_says_it_when_it_is_seen(falling):
    shown = Text(terminal=True)
    view = LiveView(shown.console, RunDirectory.open(falling))
    view.start()
    try:
        assert view.rows  # of the part before
        view.generation(records()[-1])
        assert view.worse is not None
    finally:
        view.close()
    assert "The score has declined since update 4" in shown.text
    assert "resume" in shown.text


def test_plain_output_says_it_once(falling):
    shown = Text(terminal=False)
    view = LineView(shown.console, RunDirectory.open(falling))
    view.start()
    for one in records()[-3:]:
        view.generation(one)
    assert shown.text.count("The score has declined since") == 1
    assert shown.text.count("germline resume") == 1
