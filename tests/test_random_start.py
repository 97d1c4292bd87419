"""The score before training of a LoRA run is not that of the base model, and the run says so."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import germline
from germline.cli.application import app
from germline.cli.train_summary import print_result
from germline.record import RunDirectory
from germline.report.random_start import random_start
from germline.run.model_card import model_card

START = "The score before training of a run with space=lora is that of the base model with a random"
TINY = {
    "task": {"kind": "arithmetic", "max_new_tokens": 4},
    "generations": 1,
    "batch_size": 2,
    "strategy": {"population": 2, "sigma": 0.01, "learning_rate": 0.01},
    "held_out": {"examples": 40, "every": 1},
    "record": {"tensorboard": False, "figure_every": 100},
}


def train(folder: Path, seed: int = 0, space: object = "lora") -> RunDirectory:
    germline.train({**TINY, "space": space, "seed": seed}, folder).run()
    return RunDirectory.open(folder)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A LoRA run whose start was scored."""
    return train(tmp_path_factory.mktemp("adapter") / "run")


def completions(run: RunDirectory) -> list[str]:
    return [sample.completion for sample in run.held_out()[0].samples]


def test_the_start_depends_on_the_seed_unless_b_is_zero(
    adapter: RunDirectory, tmp_path: Path
) -> None:
    # So strong a noise changes what the model says within few examples.
    strong = {"kind": "lora", "init_scale_b": 0.3}
    noisy = [completions(train(tmp_path / f"noise-{one}", one, strong)) for one in (0, 1)]
    assert noisy[0] != noisy[1]
    zero = {"kind": "lora", "init_scale_b": 0}
    bases = [completions(train(tmp_path / f"zero-{one}", one, zero)) for one in (0, 1)]
    assert bases[0] == bases[1] == completions(train(tmp_path / "base", 0, "low_rank"))
    assert random_start(adapter).startswith(START)


@pytest.mark.parametrize(
    "space",
    [
        "low_rank",
        {"kind": "lora", "init_scale_b": 0},
        {"kind": "lora", "init_scale_a": 0},
        {"kind": "lora", "init_adapter": "ADAPTER"},
    ],
    ids=str,
)
def test_a_start_at_the_base_model_or_a_given_adapter_has_no_sentence(
    adapter: RunDirectory, tmp_path: Path, space: object
) -> None:
    if isinstance(space, dict) and "init_adapter" in space:
        germline.export(adapter.path, tmp_path / "adapter")
        space = {**space, "init_adapter": str(tmp_path / "adapter")}
    assert random_start(train(tmp_path / "run", 0, space)) == ""


def test_a_fork_starts_from_the_weights_of_another_run(
    adapter: RunDirectory, tmp_path: Path
) -> None:
    germline.fork(adapter.path, 0, ["seed=1"], tmp_path / "fork").run()
    assert random_start(RunDirectory.open(tmp_path / "fork")) == ""


def test_the_summary_the_pages_and_the_card_say_it_once(
    adapter: RunDirectory, tmp_path: Path
) -> None:
    summary = io.StringIO()
    print_result(Console(file=summary, width=200), adapter, quiet=True)
    other, base = train(tmp_path / "other", 1), train(tmp_path / "base", 0, "low_rank")
    runs = [str(run.path) for run in (adapter, base, other)]
    compared = CliRunner().invoke(app, ["report", *runs, "--out", str(tmp_path / "page.html")])
    card = model_card(adapter, "here", "adapter", 0)
    page = (adapter.path / "report.html").read_text()
    for text in (summary.getvalue(), compared.stdout, card, page):
        assert text.count(START) == 1
    results, _, _ = (tmp_path / "page.html").read_text().partition('id="curves"')
    assert results.count(START) == 1
    assert START not in (base.path / "report.html").read_text()
