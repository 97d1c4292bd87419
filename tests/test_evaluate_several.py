"""Several runs, generations and adapters in one evaluation, and the export of the best weights."""

import json
import re
from pathlib import Path

import pytest

import germline
from germline.nano import NANO_DIR
from germline.record import RunDirectory
from germline.run import generate
from germline.run.weights import find_generation
from germline.types import GermlineError
from tests.command_line import command, evaluated
from tests.python_rewards import length

pytestmark = pytest.mark.usefixtures("graded_in_process")

CONFIG = {
    "task": "arithmetic",
    "space": {"kind": "lora", "rank": 1},
    "strategy": {"population": 4, "sigma": 0.05, "learning_rate": 0.05},
    "batch_size": 2,
    "generations": 3,
    "held_out": {"every": 1, "examples": 6},
    "record": {"tensorboard": False},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "lora"
    list(germline.train(CONFIG, out=path))
    return path


def test_every_generation_scores_what_the_run_recorded(trained: Path, tmp_path: Path) -> None:
    recorded = [one.score for one in RunDirectory.open(trained).held_out()]
    for updates, score in enumerate(recorded):
        measured, _ = germline.evaluate(
            str(trained), limit=6, generation=updates - 1, out=tmp_path / "completions.jsonl"
        )
        assert (measured.generation, measured.values) == (updates, score.values)


def test_models_of_the_same_name_have_files_of_their_own(tmp_path, monkeypatch):
    long = "m" * 120
    sources = ("b/model", "./model", "../model", f"a/{long}", f"b/{long}")
    for folder in ("a", "b"):
        (tmp_path / "here" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    for source in sources:
        Path(source).symlink_to(NANO_DIR)
    words = ("--task", "arithmetic", "--limit", 2, "--json")
    rows = json.loads(evaluated(*sources, *words))
    files = [row["completions"] for row in rows]
    assert len({*files}) == 5
    assert all(Path(file).exists() for file in files)


def test_the_table_has_a_row_for_every_source_and_generation(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    germline.export(trained, tmp_path / "adapter")
    rows = json.loads(
        evaluated(trained, "nano", "adapter", "-g", -1, "-g", 2, "--limit", 6, "--json")
    )
    assert [(row["source"], row["updates"]) for row in rows] == [
        (str(trained), 0),
        (str(trained), 3),
        ("nano", 0),
        ("adapter", 0),
    ]
    first, last, nano, adapter = rows
    assert first["difference_to_first"] is None
    assert last["difference_to_first"] == pytest.approx(last["mean"] - first["mean"])
    assert adapter["mean"] == last["mean"]
    assert adapter["reward"] == last["reward"]
    assert nano["n"] == 6
    assert len({row["completions"] for row in rows}) == 4
    text = evaluated(trained, "nano", "--limit", 6, "-g", "best")
    names = [line.split("\t")[:2] for line in text.splitlines()[1:3]]
    best = find_generation(RunDirectory.open(trained), "best")
    assert names == [[str(trained), f"best ({best})"], ["nano", "-"]]
    assert "paired over examples" in text


def test_a_model_before_a_run_is_scored_on_the_task_of_the_run(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = CONFIG | {"task": "multiplication", "generations": 1}
    germline.train(other, out=tmp_path / "other").run()
    result = command("eval", "nano", trained, "other", "--limit", 6, "--json")
    assert "other was trained on multiplication; here it is scored on arithmetic" in result.stderr
    nano, last, _ = json.loads(result.stdout)
    assert last["mean"] == germline.evaluate(str(trained), limit=6)[0].mean
    assert (nano["metric"], nano["n"]) == (last["metric"], 6)
    result = command("eval", "nano", "--limit", 6)
    assert "nano is not a run directory, so a task is needed" in result.stderr


@pytest.mark.parametrize("generation", ["1", "-1", "best"])
def test_export_and_replay_write_the_same_weights_of_a_generation(trained, tmp_path, generation):
    words = ("export", trained, "-g", generation, "--merged", "--out")
    for more in ([tmp_path / "exported"], [tmp_path / "replayed", "--verify"]):
        result = command(*words, *more)
        assert (result.exit_code, "digest verified: " in result.stdout) == (0, "--verify" in more)
    exported, replayed = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("exported", "replayed")
    )
    assert exported == replayed


def test_generate_answers_with_the_weights_of_a_generation(trained: Path) -> None:
    prompts = ["What is 7 plus 8?", "What is 3 plus 4?"]
    asked: dict[str, tuple[str, int | None]] = {
        "base": ("nano", None),
        "start": (str(trained), -1),
        "last": (str(trained), 2),
        "newest": (str(trained), None),
    }
    answers = {
        name: [one.tokens for one in generate(source, prompts, generation=generation)]
        for name, (source, generation) in asked.items()
    }
    assert answers["start"] == answers["base"]
    assert answers["last"] == answers["newest"] != answers["base"]
    result = command("generate", "nano", prompts[0], "-g", "best")
    assert result.exit_code == 2
    assert "nano is not a run directory, so it has no generation best" in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nano", "--task", "arithmetic", "-g", "3"], "nano is not a run directory"),
        (["RUN", "-g", "99"], "generation 99 is not in .*0 to 2"),
    ],
)
def test_what_does_not_fit_is_refused(trained: Path, words: list[str], message: str) -> None:
    result = command("eval", *(trained if one == "RUN" else one for one in words))
    assert result.exit_code == 2
    assert re.search(message, result.stderr)


def test_a_model_is_scored_on_the_rows_that_are_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"Say {number}"} for number in range(4)]
    score, file = germline.evaluate(
        "nano", reward=length, data={"train": rows[:1], "test": rows[1:]}, overrides=["engine=toy"]
    )
    assert (score.metric, score.n, file.name) == ("length", 3, "completions-nano-rows-test.jsonl")
    with pytest.raises(
        GermlineError, match=r"name a task .*or give rows of your own \(data=rows\)"
    ):
        germline.evaluate("nano", reward=length)


@pytest.mark.parametrize("refused", [("nowhere/model",), ("-g", 0, "-g", 99)])
def test_a_source_that_is_refused_costs_no_evaluation_of_the_others(refused, trained):
    before = sorted(trained.iterdir())
    done = command("eval", trained, *refused, "--limit", 2)
    assert done.exit_code == 2
    assert sorted(trained.iterdir()) == before
