"""A model and tokenizer given from Python: the bits of their folder, and what asks for them."""

import json
import shutil

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

import germline
from germline.record import RunDirectory
from germline.types import GermlineError
from tests.tiny import save_tiny
from tests.toy_runs import journal, stopped_after

pytestmark = pytest.mark.usefixtures("graded_in_process")

SMALL = {
    "task": {"kind": "arithmetic", "max_new_tokens": 2},
    "batch_size": 2,
    "generations": 2,
    "strategy": {"population": 2, "sigma": 0.01, "learning_rate": 0.01},
    "held_out": {"every": 9, "examples": 2},
    "record": {"tensorboard": False, "snapshot_every": 1},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = save_tiny(tmp_path_factory.mktemp("model"))
    loaded = {
        "model": AutoModelForCausalLM.from_pretrained(folder),
        "tokenizer": AutoTokenizer.from_pretrained(folder),
    }
    return folder, loaded


def test_a_loaded_model_trains_to_the_bits_of_its_folder_and_stays_as_it_is(tiny, tmp_path):
    folder, loaded = tiny
    before = {name: tensor.clone() for name, tensor in loaded["model"].state_dict().items()}
    of_folder = germline.train({**SMALL, "model": str(folder)}, tmp_path / "folder").run()
    training = germline.train(SMALL, tmp_path / "loaded", **loaded)
    assert training._inputs
    assert training._inputs.model
    copies = training._inputs.model.folder
    path = training.run().directory.path
    assert journal(path) == journal(of_folder.directory.path)
    assert all(tensor.equal(before[name]) for name, tensor in loaded["model"].state_dict().items())
    assert training.config.model == f"python:{type(loaded['model']).__name__}"
    del training
    assert not copies.exists()


def test_a_run_of_a_loaded_model_asks_for_it_or_for_a_folder(tiny, tmp_path):
    folder, loaded = tiny
    path = stopped_after(germline.train(SMALL, tmp_path / "run", **loaded), 1)
    for use in (
        lambda: germline.resume(path),
        lambda: germline.export(path, tmp_path / "out"),
        lambda: germline.replay(path, 0),
        lambda: germline.evaluate(str(path)),
        lambda: germline.generate(str(path), ["1 + 1 ="]),
    ):
        with pytest.raises(GermlineError, match=r"germline resume RUN model=FOLDER"):
            use()
    digest = germline.replay(path, 0, **loaded)
    germline.export(path, tmp_path / "out", **loaded)
    assert germline.evaluate(str(path), limit=2, **loaded)[0].n == 2
    germline.resume(path, [f"model={folder}"]).run()
    assert germline.replay(path, 0) == digest


def test_a_folder_of_the_model_that_is_named_holds_in_any_working_directory(
    tiny, tmp_path, monkeypatch
):
    folder, loaded = tiny
    path = germline.train({**SMALL, "generations": 1}, tmp_path / "run", **loaded).run()
    monkeypatch.chdir(folder.parent)
    germline.resume(path.directory.path, [f"model={folder.name}"])
    assert RunDirectory.open(path.directory.path).config.model == str(folder)
    germline.resume(path.directory.path, [f"model=./{folder.name}"])  # the same folder


def test_a_folder_of_the_model_that_was_moved_is_named_again(tiny, tmp_path):
    folder, _ = tiny
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(folder, old)
    config = {**SMALL, "generations": 1, "model": str(old)}
    path = germline.train(config, tmp_path / "run").run().directory.path
    with pytest.raises(GermlineError, match="model cannot change within a run"):
        germline.resume(path, [f"model={folder}"])
    old.rename(new)
    with pytest.raises(GermlineError, match="`germline resume RUN model=FOLDER`"):
        germline.export(path, tmp_path / "out")
    other = save_tiny(tmp_path / "other", seed=1)
    with pytest.raises(GermlineError, match="the base model is not the one this run began with"):
        germline.resume(path, [f"model={other}"])
    germline.resume(path, [f"model={new}"])
    germline.export(path, tmp_path / "out")


def test_what_is_no_loaded_model_with_its_tokenizer_is_refused(tiny, tmp_path):
    _, loaded = tiny
    for model, given, complaint in (
        ({}, {"model": "nano"}, "found 'nano': a folder or a Hugging Face id goes into the config"),
        ({}, {"tokenizer": 5}, "tokenizer: it belongs to a loaded model"),
        ({}, {"model": loaded["model"]}, "a loaded model needs its tokenizer"),
        ({"model": "gpt2"}, loaded, "and the config has model=gpt2: drop one of them"),
    ):
        with pytest.raises(GermlineError, match=complaint):
            germline.train({**SMALL, **model}, tmp_path, **given)


def test_an_adapter_names_where_the_model_came_from(tiny, tmp_path):
    folder, loaded = tiny
    config = {**SMALL, "space": "lora", "generations": 1}
    path = germline.train(config, tmp_path / "run", **loaded).run().directory.path
    germline.export(path, tmp_path / "adapter", **loaded)
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(folder)
