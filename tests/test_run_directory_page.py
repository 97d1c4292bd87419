"""docs/run-directory.md names every field that runs write, and none that they do not."""

import json

import pytest

import germline
from checks.reference import DOCS
from germline.studies.run_seeds import train_seeds
from tests.documented_fields import absent, field_tables, undocumented
from tests.small_runs import ROWS
from tests.toy_runs import finish, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

TABLES = field_tables(DOCS / "run-directory.md", "Fields of the files")
JSONL = ("journal.jsonl", "generations.jsonl", "rollouts.jsonl", "held_out.jsonl")
FOLDERS = {"snapshots", "tensorboard", "ancestors"}
BARE = {".writer.lock", "evolution.png", "report.html", "graders.log"}
NOT_HERE = {
    *("absent", "backpropagated", "backward_tokens", "explained_variance", "failures.*"),
    *("forward_tokens", "grad_norm", "kl", "missing", "plugins", "samples_kept", "shared_rollouts"),
}
"""Fields of runs with plugins, faults or gradients, which other tests train."""

RUNS = {
    "default": (),
    "auto": ("strategy.sigma=auto", "strategy.learning_rate=auto"),
    "skipping": ("strategy.zero_signal=skip",),
    "vectors": ("strategy=cma", "strategy.sigma=0.3", "space=subspace", "space.dimension=4"),
    "voting": ("method=randopt", "method.ensemble_size=2", "strategy.learning_rate=auto"),
    "options": ("task.temperature=0", "prompt_search.temperature=[0.5,1.0]"),
    "processes": ("fleet.engines=2",),
    "episodes": ("task={kind: wordle, max_new_tokens: 4, max_turns: 2}",),
    "success": ("strategy.sigma={kind: success, start: 0.3}",),
    "fitness": ("strategy.sigma={kind: plateau, start: 0.3}",),
    "cost": (
        "task={kind: safe_alignment, max_new_tokens: 8, temperature: 1, scorers: {reward: "
        "{kind: repetition}, cost: {kind: length, start: 0, end: 8}}}",
        f"task.path={ROWS / 'safe_alignment.jsonl'}",
    ),
    "judged": ("held_out.scorers={long: {kind: length, start: 0, end: 8}}",),
    "kept": ("retained={sums: {task: arithmetic}}",),
    "scored": ("method=zo_grpo", "method.updates_per_batch=2", "strategy.learning_rate=auto"),
    "natural": ("strategy.sigma={kind: natural, start: 0.3}",),
}


def lines(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    found = [run(folder / name, *overrides) for name, overrides in RUNS.items()]
    fork = germline.fork(found[0], 1, ["generations=2"], folder / "fork")
    study = train_seeds(settings("generations=1"), "0..2", folder / "seeds")
    for training in study.trainings():
        finish(training)
    study.write_results()
    for scored in (found[0], found[list(RUNS).index("episodes")]):
        germline.evaluate(str(scored), limit=2, samples=2)
    return [*found, finish(fork), folder / "seeds"]


def documents(folders):
    """Return what the runs wrote, by the heading of its table."""
    found: dict[str, list[object]] = {name: [] for name in TABLES}
    for folder in folders:
        for file in folder.rglob("*"):
            if file.name in TABLES and file.suffix == ".json":
                found[file.name].append(json.loads(file.read_text(encoding="utf-8")))
            elif file.name in JSONL:
                found[file.name] += lines(file)
            elif file.name.startswith("completions-"):
                found["completions-TASK-SPLIT.jsonl"] += lines(file)
            elif file.parent.name == "ancestors":
                found["journal.jsonl"] += lines(file)
    return found


def test_every_field_is_documented_and_written(folders):
    wrong = {
        f"{name}: {one}"
        for name, written in documents(folders).items()
        for document in written
        for one in undocumented(document, TABLES[name])
    }
    assert wrong == set()
    missing = {
        f"{name}: {field}"
        for name, written in documents(folders).items()
        for field in absent(written, TABLES[name]) - NOT_HERE
    }
    assert missing == set()


def test_every_file_is_on_the_page(folders):
    named = {*TABLES, *BARE}
    for folder in folders:
        for file in folder.iterdir():
            known = file.name in named | FOLDERS or file.name.startswith(("completions-", "seed-"))
            assert known, file
