"""Runs of a Hugging Face model: what they leave is a model that plain transformers understands."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from germline.config import load_config
from germline.record import RunDirectory
from germline.run import evaluate, export, generate, resume, train
from germline.types import GermlineError
from tests.merged_models import assert_same_tokens
from tests.slow_cases import mostly_slow
from tests.tiny import save_tiny
from tests.toy_runs import SETTINGS, finish, journal, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

PROMPTS = ["What is 1 + 2?", "the quick brown fox", "What is the answer?"]
VARIANTS = {
    "low-rank": ("space=low_rank", "strategy.sigma=0.1"),
    "full-adam": ("space=full", "strategy.optimizer=adam", "strategy.sigma=0.05"),
    # B starts at 0, so that generation -1 is the base model here as well.
    "lora": ("space={kind: lora, rank: 2, init_scale_b: 0}", "strategy.sigma=0.1"),
}


def config(model, *overrides):
    engine = {"kind": "inprocess", "device": "cpu", "threads": 1}
    values = {**SETTINGS, "model": str(model), "engine": engine, "generations": 3}
    return load_config(values, overrides)


@pytest.fixture(scope="module", params=mostly_slow(VARIANTS, quick=["low-rank"]))
def trained(request, tmp_path_factory):
    """A finished run of three generations, and its settings; half precision has its own tests."""
    folder = tmp_path_factory.mktemp(request.param)
    overrides = VARIANTS[request.param]
    model = save_tiny(folder / "model")
    return finish(train(config(model, *overrides), folder / "run")), overrides


@pytest.fixture(scope="module")
def one_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    model = save_tiny(folder / "model")
    return finish(train(config(model, "strategy.sigma=0.1"), folder / "run"))


def test_plain_transformers_writes_the_same_tokens_as_the_engine(trained, tmp_path):
    run, _ = trained
    export(run, tmp_path / "model", "merged")
    again = generate(str(tmp_path / "model"), PROMPTS, max_new_tokens=24)
    for prompt, text in zip(PROMPTS, again, strict=True):
        assert assert_same_tokens(run, tmp_path / "model", prompt, 24) == text.text


def test_the_base_replayed_is_the_base_model(trained, tmp_path):
    run, _ = trained
    directory = RunDirectory.open(run)
    export(run, tmp_path / "base", "merged", -1)
    expected = AutoModelForCausalLM.from_pretrained(directory.config.model).state_dict()
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "base").state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def test_only_searched_tensors_move(one_run, tmp_path):
    for generation in (-1, 2):
        export(one_run, tmp_path / str(generation), generation=generation)
    before, after = (load_file(tmp_path / str(g) / "model.safetensors") for g in (-1, 2))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if "_proj.weight" in name}


def test_a_stopped_run_reaches_the_same_bits(trained, tmp_path):
    run, _ = trained
    settings = RunDirectory.open(run).config
    path = stopped_after(train(settings, tmp_path / "run"), 1)
    stopped_after(resume(path), 1)
    finish(resume(path))
    assert journal(path) == journal(run)


def test_a_folder_of_the_model_that_was_moved_is_named_again(tmp_path):
    folder = save_tiny(tmp_path / "model")
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(folder, old)
    config = {**SETTINGS, "generations": 1, "model": str(old), "engine": "inprocess"}
    path = train(config, tmp_path / "run").run().directory.path
    with pytest.raises(GermlineError, match="model cannot change within a run"):
        resume(path, [f"model={folder}"])
    old.rename(new)
    with pytest.raises(GermlineError, match="`germline resume RUN model=FOLDER`"):
        export(path, tmp_path / "out")
    other = save_tiny(tmp_path / "other", seed=1)
    with pytest.raises(GermlineError, match="the base model is not the one this run began with"):
        resume(path, [f"model={other}"])
    resume(path, [f"model={new}"])
    export(path, tmp_path / "out")


def test_a_taken_folder_is_not_written_into(one_run, tmp_path):
    (tmp_path / "precious").write_text("data")
    with pytest.raises(GermlineError, match="exists and is not empty"):
        export(one_run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


# --- evaluate


def test_completions_are_written_with_prompt_answer_and_grade(one_run, tmp_path):
    score, path = evaluate(str(one_run), limit=7, out=tmp_path / "deep" / "c.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert path == tmp_path / "deep" / "c.jsonl"
    assert [row["example"] for row in rows] == list(range(7))
    lengths = [abs(len(row["completion"]) - len(row["answer"])) for row in rows]
    assert lengths == [row["parts"]["length_difference"] for row in rows]
    assert [-one for one in lengths] == [row["reward"] for row in rows]
    assert {row["failure"] for row in rows} == {None}
    assert all(row["prompt"] for row in rows)
    assert score.n == 7
    assert score.mean == pytest.approx(np.mean(lengths), rel=1e-15)
    assert score.standard_error == pytest.approx(np.std(lengths, ddof=1) / math.sqrt(7), rel=1e-15)


def test_completions_go_beside_the_run_unless_told_otherwise(one_run):
    _, path = evaluate(str(one_run), limit=2)
    assert path == one_run / "completions-conciseness-test.jsonl"
    path.unlink()
    _, path = evaluate(str(one_run), limit=2, generation=-1)
    assert path == one_run / "completions-conciseness-test-generation-start.jsonl"
    path.unlink()


def test_a_file_that_holds_no_completions_is_not_replaced(one_run, tmp_path):
    kept = (one_run / "journal.jsonl").read_bytes()
    with pytest.raises(GermlineError, match=r"journal\.jsonl exists and holds no completions"):
        evaluate(str(one_run), limit=1, out=one_run / "journal.jsonl")
    assert (one_run / "journal.jsonl").read_bytes() == kept
    empty = tmp_path / "empty"
    empty.touch()
    assert evaluate(str(one_run), limit=1, out=empty)[1].read_bytes()


def test_a_model_folder_is_evaluated_as_it_is(one_run, tmp_path):
    directory = RunDirectory.open(one_run)
    task = directory.config.task
    score, _ = evaluate(
        directory.config.model,
        task,
        limit=5,
        out=tmp_path / "c.jsonl",
        temperature=task.temperature,  # which toy runs have for held-out completions
    )
    assert score == replace(directory.held_out()[0].score, behavior={})
