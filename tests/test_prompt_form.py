"""The prompts of `generate` and `serve` have the form that the run trained with."""

import json
from typing import Any

import pytest
from huggingface_hub import ModelCard

import germline
from germline.record import RunDirectory
from germline.services.serve import ServedWeights

TINY: dict[str, Any] = {
    "batch_size": 2,
    "generations": 1,
    "strategy": {"population": 2, "sigma": 0.01, "learning_rate": 0.01},
    "held_out": {"examples": 2},
    "record": {"tensorboard": False, "rollouts": 1},
}
PROMPT = "What is 3 + 5?"
RAW_TASK = """
settings = {"chat": False}
train = [{"prompt": f"{i} and then", "answer": "x"} for i in range(8)]


def reward(completion, example):
    return float(example["answer"] in completion)
"""


def trained(folder, task):
    germline.train({**TINY, "task": task}, folder).run()
    return folder


def texts(source, **options):
    return [
        one.text for one in germline.generate(str(source), [PROMPT], max_new_tokens=8, **options)
    ]


@pytest.fixture(scope="module")
def countdown(tmp_path_factory):
    task = {"kind": "countdown", "max_new_tokens": 4}
    return trained(tmp_path_factory.mktemp("form") / "countdown", task)


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory):
    task = {"kind": "arithmetic", "max_new_tokens": 4}
    return trained(tmp_path_factory.mktemp("form") / "arithmetic", task)


def test_a_run_that_sent_its_prompts_as_they_are_is_asked_so_and_says_so(countdown, caplog):
    raw = texts(countdown, chat=False)
    assert raw != texts(countdown, chat=True)  # else the next line shows nothing
    assert not caplog.text
    assert texts(countdown) == raw
    assert "as in the run that trained these weights; chat=True (--chat)" in caplog.text


def test_a_model_that_was_exported_from_such_a_run_is_asked_so_too(countdown, tmp_path, caplog):
    germline.export(countdown, tmp_path / "model", form="merged")
    facts = json.loads((tmp_path / "model" / "germline.json").read_bytes())
    entry = RunDirectory.open(countdown).journal.read()[-1]
    assert (facts["digest"], facts["generation"]) == (entry.digest, entry.update.generation)
    assert facts["config"]["task"]["kind"] == "countdown"
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.to_dict() == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["germline"],
    }
    assert entry.digest in card.text
    assert texts(tmp_path / "model") == texts(countdown, chat=False)
    assert "as in the run that trained these weights" in caplog.text
    assert not ServedWeights.open(str(tmp_path / "model")).sends_chats


@pytest.mark.parametrize("source", ["arithmetic", "nano"])
def test_a_run_of_chats_and_a_model_are_asked_through_the_template(arithmetic, caplog, source):
    source = arithmetic if source == "arithmetic" else source
    chat = texts(source, chat=True)
    assert chat != texts(source, chat=False)
    assert texts(source) == chat
    assert not caplog.text


def test_a_setting_is_stronger_than_the_task(tmp_path):
    raw = trained(tmp_path / "raw", {"kind": "arithmetic", "chat": False, "max_new_tokens": 4})
    assert texts(raw) == texts(raw, chat=False) != texts(raw, chat=True)


def test_a_python_file_decides_and_its_absence_ends_nothing(tmp_path, caplog):
    file = tmp_path / "task.py"
    file.write_text(RAW_TASK)
    run = trained(tmp_path / "run", {"kind": "python", "path": str(file), "max_new_tokens": 4})
    assert texts(run) == texts(run, chat=False) != texts(run, chat=True)
    file.unlink()
    assert texts(run) == texts(run, chat=True)


def test_a_server_knows_how_prompts_were_sent(countdown, arithmetic):
    served = {source: ServedWeights.open(str(source)) for source in (countdown, arithmetic, "nano")}
    assert [one.sends_chats for one in served.values()] == [False, True, True]
