"""Models in GGUF files: read, trained, exported, and refused in one sentence."""

import json
import struct

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from huggingface_hub.utils import _cache_assets
from safetensors.torch import load_file

import germline
from germline.analysis import analyze, open_weights
from germline.engines import checkpoint_files
from germline.engines.pretrained import load_pretrained, load_tokenizer, local_model_folder
from germline.estimates.sizes import shape_of
from germline.types import GermlineError
from tests.merged_models import assert_same_tokens
from tests.tiny import save_tiny
from tests.tiny_gguf import write_gguf

pytestmark = pytest.mark.usefixtures("graded_in_process")

Q8 = GGMLQuantizationType.Q8_0
UP = "model.layers.1.mlp.up_proj.weight"

SMALL = {
    "task": {"kind": "arithmetic", "max_new_tokens": 4},
    "space": {"kind": "lora", "rank": 2},
    "strategy": {"population": 4, "sigma": 0.05, "learning_rate": 0.05},
    "engine": {"kind": "inprocess", "dtype": "float32"},
    "generations": 2,
    "batch_size": 2,
    "held_out": {"examples": 2},
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """Let unpacked folders be in a temporary folder."""
    folder = tmp_path_factory.mktemp("assets")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_cache_assets, "HF_ASSETS_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model") / "tiny", "llama")


@pytest.fixture(scope="module")
def file(model):
    """The model, its weights as they are."""
    return write_gguf(model, model.with_name("tiny.gguf"))


@pytest.fixture(scope="module")
def quantized(model):
    return write_gguf(model, model.with_name("tiny.Q8_0.gguf"), Q8)


def test_floats_in_a_file_are_the_weights_of_the_model_bit_for_bit(model, file):
    loaded, original = load_pretrained(str(file)), load_pretrained(str(model))
    expected = original.model.state_dict()
    assert loaded.model.state_dict().keys() == expected.keys()
    assert all(torch.equal(one, expected[name]) for name, one in loaded.model.state_dict().items())
    assert loaded.model.get_output_embeddings().weight is loaded.model.get_input_embeddings().weight


def test_quantized_blocks_become_the_floats_that_gguf_makes_of_them(model, quantized):
    loaded = load_pretrained(str(quantized)).model.get_parameter(UP)
    original = load_file(model / "model.safetensors")[UP].numpy()
    assert loaded.dtype == torch.float32
    assert (loaded.numpy() == dequantize(quantize(original, Q8), Q8)).all()
    assert (loaded.numpy() != original).any()


def test_the_chat_template_and_the_special_tokens_are_kept(model, file):
    loaded, _ = load_tokenizer(str(file))
    original, _ = load_tokenizer(str(model))
    chat = [{"role": "user", "content": "What is 1 + 2?"}]
    texts = [one.apply_chat_template(chat, tokenize=False) for one in (loaded, original)]
    assert texts[0] == texts[1]
    assert loaded(texts[0])["input_ids"] == original(texts[1])["input_ids"]
    assert (loaded.eos_token, loaded.pad_token) == (original.eos_token, original.pad_token)


def test_a_model_ends_its_text_with_the_end_of_turn_of_the_file_too(model, tmp_path):
    file = write_gguf(model, tmp_path / "turns.gguf", end_of_turn=7)
    found = load_pretrained(str(file)).model.generation_config
    assert found.eos_token_id == [load_tokenizer(str(model))[0].eos_token_id, 7]


def test_an_unpacked_file_is_read_once_and_a_changed_one_again(model, tmp_path, monkeypatch):
    file = write_gguf(model, tmp_path / "again.gguf")
    first = load_pretrained(str(file)).source
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "_write_model", lambda *_: pytest.fail("it was read again"))
        assert load_pretrained(str(file)).source == first
    file.unlink()
    other = save_tiny(tmp_path / "other", "llama", seed=1)
    write_gguf(other, file)
    again = load_pretrained(str(file))
    assert again.source != first
    assert torch.equal(again.model.get_parameter(UP), load_file(other / "model.safetensors")[UP])


def test_a_scaled_rotary_embedding_that_is_ignored_gets_a_warning(model, tmp_path, caplog):
    load_pretrained(str(write_gguf(model, tmp_path / "scaled.gguf", rope_factors=True)))
    assert "transformers ignores rope_freqs.weight" in caplog.text
    assert "differs from the original one" in caplog.text


def test_an_estimate_reads_no_weights(model, tmp_path):
    file = write_gguf(model, tmp_path / "estimated.gguf", Q8)
    shape = shape_of(str(file))
    assert shape.numbers == shape_of(str(model)).numbers
    assert shape.stored_dtype == torch.float32
    folder = local_model_folder(str(file))
    assert folder is not None
    assert not list(folder.glob("*.safetensors"))


def test_a_run_of_a_file_is_exported_as_a_folder_that_writes_the_same_tokens(file, tmp_path):
    run = tmp_path / "run"
    germline.train({**SMALL, "model": str(file), "space": "low_rank"}, run).run()
    exported = tmp_path / "exported"
    germline.export(run, exported, form="merged")
    assert assert_same_tokens(run, exported, "What is 1 + 2?", 12)
    assert "quantization_config" not in json.loads((exported / "config.json").read_text())


def test_a_run_of_a_file_is_analyzed_beside_its_export(file, tmp_path):
    run, exported = tmp_path / "run", tmp_path / "exported"
    germline.train({**SMALL, "model": str(file), "space": "full"}, run).run()
    germline.export(run, exported)
    ran, merged = (open_weights(one, folder=tmp_path) for one in (run, exported))
    start = open_weights(file, folder=tmp_path)
    assert ran.base is not None
    assert ran.base.equals(start)
    assert ran.equals(merged)
    analyze("deltas", [run, exported], start=file)


def test_a_run_goes_on_with_a_file_that_was_moved(model, tmp_path):
    file = write_gguf(model, tmp_path / "first.gguf")
    germline.train({**SMALL, "model": str(file), "generations": 1}, tmp_path / "run").run()
    moved = file.rename(tmp_path / "moved.gguf")
    training = germline.resume(tmp_path / "run", [f"model={moved}", "generations=2"]).run()
    assert training.config.model == str(moved)
    assert training.directory.journal.last_generation() == 1


def test_an_adapter_of_a_file_loads_again(model, file, tmp_path):
    run, adapter = tmp_path / "run", tmp_path / "adapter"
    germline.train({**SMALL, "model": str(file), "generations": 1}, run).run()
    germline.export(run, adapter)
    texts = [germline.generate(str(one), ["Hello"], max_new_tokens=8) for one in (run, adapter)]
    assert texts[0] == texts[1]


def damaged(change):
    """Return a damage: the file's bytes, changed."""
    return lambda file, model: file.write_bytes(change(file.read_bytes()))


def other_quantization(content: bytes) -> bytes:
    """Let the first matrix have a quantization that does not exist."""
    name = b"token_embd.weight"
    at = content.index(name) + len(name) + 4 + 2 * 8
    return content[:at] + struct.pack("<I", 250) + content[at + 4 :]


@pytest.mark.parametrize(
    "damage",
    [
        damaged(lambda content: content[:-5000]),
        damaged(lambda _: b""),
        damaged(other_quantization),
        damaged(lambda content: content.replace(b"blk.1.ffn_up", b"blk.1.ffn_uq")),
        lambda file, model: write_gguf(model, file, architecture="rwkv7"),
        lambda file, model: write_gguf(model, file, weights=False),
        lambda file, model: file.unlink(),
        lambda file, model: file.write_bytes(b""),
    ],
)
def test_a_file_that_is_no_model_is_refused(model, tmp_path, damage):
    file = write_gguf(model, tmp_path / "bad.gguf")
    damage(file, model)
    with pytest.raises(GermlineError, match=r"^model.*bad\.gguf"):
        load_pretrained(str(file))
