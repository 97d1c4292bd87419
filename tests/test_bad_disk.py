"""Bad input on disk: full, read-only and taken folders, damaged files of a run; nothing is lost."""

import errno
import io
import json
import math
import os
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

import germline
from germline.cli.run_loop import print_result
from germline.engines.toy import ToyEngine
from germline.record import RunDirectory
from germline.record.atomic_files import append_rows, write_atomically
from germline.report.run_facts import RunFacts
from germline.run.trackers import TensorBoard
from germline.tasks.conciseness import ConcisenessTask
from germline.types import GermlineError
from tests.command_line import command
from tests.python_rewards import length
from tests.synthetic_runs import record
from tests.test_from_python import ON_ROWS
from tests.toy_runs import SETTINGS, finish, journal, run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

LARGE = "strategy={population: 100, sigma: 0.3, learning_rate: 0.1, antithetic: false}"


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let every file of this process end at a size, as on a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A module imported meanwhile would leave truncated bytecode for every later process.
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    before = os.environ.get("PYTHONDONTWRITEBYTECODE")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # of the processes that start meanwhile
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = writes_bytecode
        del os.environ["PYTHONDONTWRITEBYTECODE"]
        if before is not None:
            os.environ["PYTHONDONTWRITEBYTECODE"] = before


def told(*words: object) -> str:
    """Return what the command line says to a mistake, without a traceback, and with status 2."""
    shown = command(*words)
    assert shown.exit_code == 2, shown.output
    assert shown.stderr.startswith("germline: ")
    return shown.stderr


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    return run(tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """Its twin, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("file", "overrides", "size"),
    [
        ("journal.jsonl", ("record.rollouts=0", LARGE, "generations=2"), 3500),
        ("rollouts.jsonl", ("record.rollouts=100",), 6000),
        ("generations.jsonl", ("record.rollouts=0", "record.snapshot_every=9"), 1500),
        (
            "snapshots/generation-000001.safetensors",
            ("record.rollouts=0", "strategy.optimizer=adam", "strategy.learning_rate=0.01"),
            5000,
        ),
        ("held_out.jsonl", ("record.rollouts=0",), 200),
    ],
)
def test_a_full_disk_is_told_and_the_run_goes_on_to_the_same_bits(file, overrides, size, tmp_path):
    undisturbed = journal(run(tmp_path / "undisturbed", *overrides))
    training = germline.train(settings(*overrides), tmp_path / "run")
    expected = rf"run/{file} cannot be written: .*; choose .*`germline resume`"
    with files_of_at_most(size), pytest.raises(GermlineError, match=expected):
        finish(training)
    folder = training.directory.path
    assert not [left for left in folder.rglob("*") if left.suffix in (".tmp", ".partial")]
    assert undisturbed.startswith(journal(folder) if (folder / "journal.jsonl").exists() else b"")
    assert journal(finish(germline.resume(folder))) == undisturbed


def test_a_disk_too_full_to_begin_on_says_so(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(json.dumps(SETTINGS))
    with files_of_at_most(100):
        said = told("train", tmp_path / "c.yaml", "--out", tmp_path / "run")
    assert f"{tmp_path / 'run' / 'run.json'} cannot be written: File too large; choose" in said
    finish(germline.train(SETTINGS, tmp_path / "run"))


def test_what_did_not_fit_leaves_no_torn_line(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    append_rows(rows, [{"a": 1}])
    before = rows.read_bytes()
    with files_of_at_most(len(before) + 4), pytest.raises(GermlineError, match="cannot be written"):
        append_rows(rows, [{"b": 2}])
    assert rows.read_bytes() == before


def test_a_file_that_cannot_be_replaced_stays_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_bytes(b"old")
    with files_of_at_most(2), pytest.raises(GermlineError, match="cannot be written"):
        write_atomically(file, b"new content")
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == {"run.json": b"old"}


def test_tensorboard_on_a_full_disk_raises_and_does_not_wait_for_ever(tmp_path: Path) -> None:
    tracker = TensorBoard(tmp_path)

    def fill() -> None:
        for generation in range(200):
            tracker.on_generation(record(generation))

    with files_of_at_most(2000), pytest.raises(GermlineError, match=r"tfevents.* cannot be writ"):
        fill()
    tracker.close()


def test_a_folder_nobody_may_write_to_is_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    # Tests may run as root, whom permissions do not stop.
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != tmp_path)
    with pytest.raises(GermlineError, match=r"out: .*new/run cannot be made, as .* may not be wri"):
        germline.train({"model": "no such model"}, tmp_path / "new" / "run")


def test_a_read_only_run_is_not_resumed_but_replayed(copy, monkeypatch):
    plain = os.open

    def opened(path: object, flags: int, *rest: int) -> int:
        if flags & os.O_WRONLY:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return plain(path, flags, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", opened)
    assert "cannot be written: Permission denied" in told("resume", copy)
    last = RunDirectory.open(copy).journal.read()[-1]
    assert germline.replay(copy, last.update.generation) == last.digest


@pytest.mark.parametrize(
    ("place", "state"),
    [
        *(("file", "is a file"), ("file/run", "is a file")),
        *(("foreign", "is not empty"), ("run", "is not empty")),
    ],
)
def test_a_place_that_is_taken_is_refused_before_anything_is_loaded(place, state, tmp_path, whole):
    (tmp_path / "file").write_text("")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("precious")
    (tmp_path / "run").symlink_to(whole)
    with pytest.raises(GermlineError, match=f"out: .*{place} .*{state}"):
        germline.train({"model": "no such model"}, tmp_path / place)
    assert (tmp_path / "foreign" / "thesis.tex").read_text() == "precious"


def without(*names: str) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        return json.dumps({k: v for k, v in json.loads(content).items() if k not in names}).encode()

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:-40],
        lambda _: b"\xff\xfe\x00",
        lambda _: b"[]",
        *(map(without, ("base_digest", "threads", "config"))),
        lambda content: content.replace(b'"threads": ', b'"threads": 0.'),
        lambda content: content.replace(b'"sigma": 0.3', b'"sigma": -0.3'),
    ],
)
def test_a_damaged_run_json_is_told(change, copy):
    file = copy / "run.json"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(GermlineError, match=r"run\.json"):
        germline.resume(copy)


@pytest.mark.parametrize("line", ['{"generation": 0}', "[]", '{"generation": "x", "mean'])
def test_a_damaged_row_is_told_with_its_line_and_that_the_weights_do_not_need_it(line, copy):
    file = copy / "held_out.jsonl"
    file.write_bytes(line.encode() + b"\n" + file.read_bytes())
    with pytest.raises(GermlineError, match=r"held_out\.jsonl, line 1: damaged.*delete that line"):
        finish(germline.resume(copy, ["generations=6"]))
    last = RunDirectory.open(copy).journal.read()[-1]
    assert germline.replay(copy, last.update.generation) == last.digest


ROWS = 'train = [{"prompt": f"p{i}", "answer": "a", "place": i} for i in range(12)]\n'
TASK = "task={{path: {}, temperature: 1.0, max_new_tokens: 16, stop: [e, t, a, o, i, n, s, ' ']}}"


def task(folder, body, rows=ROWS):
    """Write a task file and return the override that trains on it."""
    file = folder / "task.py"
    file.write_text(f"{rows}\ndef reward(completion, example):\n    return {body}\n")
    return TASK.format(file)


def recorded(path):
    directory = RunDirectory.open(path)
    return directory.generations(), [entry.update for entry in directory.journal.read()]


def said(path):
    with redirect_stdout(io.StringIO()) as file:
        print_result(RunDirectory.open(path), quiet=True)
    return file.getvalue()


@pytest.mark.parametrize("sigma", ["auto", "0.1"])
def test_an_engine_that_ignores_its_members_stops_before_generation_0(sigma, tmp_path, monkeypatch):
    kept = ToyEngine.generate, ToyEngine.log_probabilities
    generate, log_probabilities = (
        lambda self, members, *rest, call=call: call(self, [None] * len(members), *rest)
        for call in kept
    )
    monkeypatch.setattr(ToyEngine, "generate", generate)
    asked = f"strategy.sigma={sigma}"
    run(tmp_path / "scores", asked, "generations=1")  # their scores differ
    monkeypatch.setattr(ToyEngine, "log_probabilities", log_probabilities)
    with pytest.raises(GermlineError, match="members"):
        run(tmp_path / "run", asked)
    assert not recorded(tmp_path / "run")[1]


def test_a_task_of_a_plugin_without_held_out_examples_trains_and_says_so(tmp_path, monkeypatch):
    train_only = ConcisenessTask.examples
    monkeypatch.setattr(
        ConcisenessTask,
        "examples",
        lambda self, split: train_only(self, split) if split == "train" else [],
    )
    path = run(tmp_path / "run", "generations=6")
    assert len(recorded(path)[0]) == 6
    assert "held-out: no example could be scored" in said(path)
    assert germline.write_report(path).exists()
    assert "decline" not in [one.code for one in RunFacts(path).findings]
    with pytest.raises(GermlineError, match="has no held-out score, so none is the best"):
        germline.fork(path, "best", (), tmp_path / "new")


def test_one_held_out_example_has_no_error_and_proves_nothing(tmp_path):
    path = run(tmp_path / "run", "generations=8", "held_out.examples=1", "held_out.every=1")
    facts = RunFacts(path)
    assert all(math.isnan(score.standard_error) for score in facts.scores)
    assert "decline" not in [one.code for one in facts.findings]
    assert ", n 1)" in said(path)
    assert germline.write_report(path).exists()


def test_a_batch_of_one_example_has_no_halves_and_trains(tmp_path):
    rows, updates = recorded(run(tmp_path / "run", "batch_size=1", "generations=6"))
    assert all(row["signals"]["agreement"] is None for row in rows)
    assert any(any(update.coefficients) for update in updates)
    assert math.isfinite(rows[-1]["signals"]["walk"])


@pytest.mark.parametrize("antithetic", ["true", "false"])
def test_a_population_of_two_steps_towards_the_better_one(tmp_path, antithetic):
    section = ("strategy.population=2", f"strategy.antithetic={antithetic}", "generations=6")
    rows, updates = recorded(run(tmp_path / "run", *section))
    length = 1.0 if antithetic == "true" else math.sqrt(0.5)
    for row, update in zip(rows, updates, strict=True):
        # Z-scores of two are +1 and -1 however little they differ, or 0 where they do not.
        expected = 0.0 if row["zero_signal"] else length
        assert math.hypot(*update.coefficients) == pytest.approx(expected)
    assert rows[-1]["signals"]["walk"] == pytest.approx(0.1 * length * math.sqrt(6), rel=0.1)


@pytest.mark.parametrize("size", ["1e300", "1e-300"])
def test_rewards_at_the_ends_of_float64_train_without_a_warning(tmp_path, size):
    path = run(tmp_path / "run", task(tmp_path, f"{size} * len(completion)"))
    rows, updates = recorded(path)
    assert all(np.isfinite(update.coefficients).all() for update in updates)
    assert all(abs(row["signals"]["agreement"] or 0.0) <= 1 for row in rows)
    assert germline.write_report(path).exists()


def test_the_path_of_a_missing_run_is_not_taken_for_a_hub_id(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "march").mkdir()
    for name in ("sums", "words"):
        run(Path("march") / name, "generations=1")
    for source, said in {
        "march/typo": "march/sums, march/words",
        "march/sum": "did you mean 'march/sums'?",
        "runs/typo": "runs/typo/run.json",
    }.items():
        shown = command("eval", source, "--task", "countdown")
        assert (shown.exit_code, said in shown.stderr) == (2, True)


def test_held_out_prompts_that_are_trained_on_are_told(tmp_path, caplog):
    rows = [{"prompt": f"{n}?", "answer": str(n)} for n in range(6)]
    given = {"train": rows, "test": rows[4:]}
    germline.train(ON_ROWS, tmp_path / "both", reward=length, data=given)
    assert "held-out prompts that are also trained on: 2, such as '4?', so the" in caplog.text
    caplog.clear()
    germline.train(ON_ROWS, tmp_path / "one", reward=length, data=rows)
    assert "also trained on" not in caplog.text
