"""The model card of an export says what the run recorded, and never costs the weights."""

import re
from typing import Any

import pytest
import yaml

import germline
from germline.config import load_config
from germline.record import RunDirectory
from germline.run import model_card as module
from germline.run.model_card import model_card
from germline.run.model_prompts import read_export_facts
from tests.toy_runs import run

TINY = {
    "task": {"kind": "arithmetic", "max_new_tokens": 4},
    "batch_size": 4,
    "generations": 2,
    "strategy": {"population": 4, "sigma": 0.01, "learning_rate": 0.01},
    "held_out": {"examples": 6, "every": 1},
    "record": {"tensorboard": False},
}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card") / "run"
    for _ in germline.train({**TINY, "space": "lora"}, folder):
        pass
    return folder


def header(text):
    return yaml.safe_load(text.split("---\n")[1])


@pytest.fixture(scope="module")
def exported(adapter, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    germline.export(adapter, folder / "adapter")
    germline.export(adapter, folder / "merged", "merged", generation=0)
    return folder


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # by peft
@pytest.mark.parametrize(
    ("form", "library"),
    [("adapter", "peft"), ("merged", "transformers")],
    ids=["adapter", "merged"],
)
def test_an_export_loads_as_its_card_says(exported, form, library):
    text = (exported / form / "README.md").read_text()
    assert header(text)["library_name"] == library
    code = text.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace(f'"{form}"', repr(str(exported / form))), names)  # noqa: S102 - as shown
    assert names["tokenizer"]("What is 7 + 8?").input_ids
    assert type(names["model"]).__name__.startswith("Peft") == (form == "adapter")


def test_a_card_names_the_weights_and_all_files_have_one_mode(adapter, exported):
    text = (exported / "merged" / "README.md").read_text()
    assert RunDirectory.open(adapter).journal.read()[0].digest in text
    assert "| generations | 1 of 2, run seed 0 |" in text
    modes = {path.stat().st_mode for path in (exported / "merged").iterdir()}
    assert len(modes) == 1  # whoever can read the config can read the weights


def test_the_config_is_that_of_the_run_without_local_folders(tmp_path):
    folder = run(tmp_path / "run", "held_out.temperature=1")
    directory = RunDirectory.open(folder)
    config = directory.config.model_copy(update={"model": "/home/someone/private/my-model"})
    directory.config = config
    text = model_card(directory, "here", "merged", 0)
    assert "/home/someone" not in text
    settings = yaml.safe_load(re.findall(r"````yaml\n(.*?)````", text, re.DOTALL)[0])
    assert settings.pop("model") == "my-model"
    assert "optimizer" not in settings["strategy"]  # the default
    assert load_config(settings).model_copy(update={"model": config.model}) == config
    assert "null" not in text
    assert "base_model" not in header(text)
    directory.config = config.model_copy(update={"model": "Qwen/Qwen2.5-0.5B"})
    assert header(model_card(directory, "x", "merged", 0))["base_model"] == "Qwen/Qwen2.5-0.5B"
    assert "without backpropagation" in text
    directory.config = load_config({"method": "ppo", "task": "arithmetic", "batch_size": 4})
    text = model_card(directory, "x", "merged", 0)
    assert "by backpropagation on rewarded samples" in text
    assert header(text)["tags"] == ["germline"]
    assert "strategy `nes`" not in text


def test_a_card_that_cannot_be_written_is_a_warning(adapter, tmp_path, caplog, monkeypatch):
    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(module, "write_atomically", fail)
    germline.export(adapter, tmp_path / "out")
    assert "the model card was not written: no space left" in caplog.text
    assert (tmp_path / "out" / "adapter_config.json").exists()


def test_the_card_of_a_user_does_not_change_how_prompts_are_sent(adapter, tmp_path):
    germline.export(adapter, tmp_path / "out")
    (tmp_path / "out" / "README.md").write_text("My own card: prompts as they are.")
    assert read_export_facts(tmp_path / "out")["chat"] is True
