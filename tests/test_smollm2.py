"""SmolLM2-135M-Instruct, a real pretrained chat model."""

import pytest

import germline
from checks import smollm2
from tests.merged_models import assert_same_tokens

FOLDER = smollm2.MODELS / smollm2.NAME
FILE = FOLDER.with_name(f"{smollm2.NAME}.Q4_1.gguf")
QUESTION = "What is the capital of France?"

fetched = pytest.mark.skipif(
    not (FOLDER.is_dir() and FILE.is_file()), reason=f"{FILE} is missing: run `make smollm2`"
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
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
def test_an_export_of_a_run_writes_the_same_tokens(trained, tmp_path):
    germline.export(trained, tmp_path / "exported", form="merged")
    assert "Paris" in assert_same_tokens(trained, tmp_path / "exported", QUESTION, 12)
