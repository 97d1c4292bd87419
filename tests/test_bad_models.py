"""Bad models: folders that lack something, templates that fail, prompts and steps out of range."""

import io
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, ByT5Tokenizer

import germline
from germline.config import Full, Lora, LowRank
from germline.engines import pretrained
from germline.engines.pretrained import load_pretrained
from germline.engines.rows_in_progress import Detokenizer, cut_completion
from germline.engines.sampling import choose_tokens
from germline.estimates.sizes import shape_of
from germline.types import Decoding, Example, GermlineError, Update
from tests.tiny import save_tiny, tokenizer
from tests.tiny_engines import engine, examples, inprocess, population


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model") / "good")


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


@pytest.fixture
def said() -> Iterator[Callable[[], str]]:
    """What transformers has said since: to its log, and on stderr."""
    printed = io.StringIO()
    handler, logger = logging.StreamHandler(printed), logging.getLogger("transformers")
    logger.addHandler(handler)
    with redirect_stderr(printed):
        yield printed.getvalue
    logger.removeHandler(handler)


def weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return damage


def config_json(**changes: object) -> Callable[[Path], object]:
    def damage(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return damage


def cut(name: str, size: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut("model.safetensors", 5000), "cannot be loaded"),
        (cut("config.json", 10), "cannot be loaded"),
        (lambda folder: (folder / "config.json").unlink(), "cannot be loaded"),
        (lambda folder: (folder / "model.safetensors").unlink(), "no file named model.safetensors"),
        (
            lambda folder: [file.unlink() for file in folder.glob("*token*")],
            "the tokenizer of .* turns text into no tokens",
        ),
        (weights(lambda all_: all_.pop(UP)), rf"does not hold {UP}"),
        (
            weights(lambda all_: all_.update({UP: all_[UP][1:].clone()})),
            rf"{UP} of .* has the shape \[95, 64\], but config\.json expects \[96, 64\]",
        ),
        (
            weights(lambda all_: all_[UP].fill_(float("nan"))),
            rf"{UP} of .* holds numbers that are not finite",
        ),
        (config_json(model_type="qwen99"), "does not recognize this architecture"),
        (config_json(model_type="bert"), r"\(model_type bert\) is no decoder-only causal"),
        (config_json(model_type="t5"), r"\(model_type t5\) is no decoder-only causal"),
        (config_json(model_type="vit"), r"\(model_type vit\) is no decoder-only causal"),
        (config_json(num_hidden_layers=9), "cannot be loaded .*num_hidden_layers"),
    ],
)
def test_a_damaged_model_folder_is_told_by_what_is_wrong(
    damage: Callable[[Path], object], message: str, folder: Path, said: Callable[[], str]
) -> None:
    damage(folder)
    with pytest.raises(GermlineError, match=rf"(?s)^model: .*{message}"):
        load_pretrained(str(folder))
    assert said() == ""  # the library's own reports would only confuse


def codes(name: str, dtype: torch.dtype) -> Callable[[Path], object]:
    """Keep a matrix as integers, under a name of the library that made them."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        matrix = tensors.pop(UP)
        tensors[name] = (matrix * 100).to(dtype)

    return weights(change)


QUANTISED = {
    "gptq": (UP.replace("weight", "qweight"), torch.int32),
    "awq": (UP.replace("weight", "qweight"), torch.int32),
    "bitsandbytes": (UP, torch.uint8),
    "fp8": (UP, torch.float8_e4m3fn),
    "": (UP, torch.int8),  # config.json says nothing
}


@pytest.mark.parametrize("method", QUANTISED)
def test_a_quantized_model_is_refused(method: str, folder: Path, said: Callable[[], str]) -> None:
    name, dtype = QUANTISED[method]
    codes(name, dtype)(folder)
    if method:
        config_json(quantization_config={"quant_method": method, "bits": 4})(folder)
    libraries = set(sys.modules)
    with pytest.raises(GermlineError, match=r"^model: .* is quantized"):
        load_pretrained(str(folder))
    assert not {"bitsandbytes", "gptqmodel", "awq"} & (set(sys.modules) - libraries)
    assert said() == ""


def test_masks_kept_as_integers_do_not_make_a_model_quantized(folder: Path) -> None:
    mask = {"model.layers.0.self_attn.bias": torch.ones(4, 4, dtype=torch.uint8)}
    weights(lambda tensors: tensors.update(mask))(folder)
    load_pretrained(str(folder))


# --- weights in several files, or twice


EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def sharded(folder: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    assert (folder / "model.safetensors.index.json").exists()
    return folder


def embeddings(folder: Path) -> torch.Tensor:
    return load_pretrained(str(folder)).model.get_parameter(EMBEDDINGS)


def test_shards_are_the_same_model(sharded: Path, good: Path) -> None:
    assert embeddings(sharded).equal(embeddings(good))


def test_a_missing_shard_is_not_made_good_by_older_weights_beside_it(
    sharded: Path, good: Path
) -> None:
    torch.save(load_file(good / "model.safetensors"), sharded / "pytorch_model.bin")
    next(sharded.glob("model-*.safetensors")).unlink()
    with pytest.raises(GermlineError, match=r"model: .* cannot be loaded"):
        load_pretrained(str(sharded))


def test_tied_weights_stored_with_different_values_are_named_with_the_setting(folder: Path) -> None:
    weights(lambda all_: all_.update({HEAD: all_[EMBEDDINGS] + 0.5}))(folder)
    with pytest.raises(GermlineError, match=rf"{HEAD} and {EMBEDDINGS} .*tie_word_embeddings=true"):
        load_pretrained(str(folder))
    config_json(tie_word_embeddings=False)(folder)  # the remedy
    model = load_pretrained(str(folder)).model
    assert not model.get_parameter(HEAD).equal(model.get_parameter(EMBEDDINGS))


@pytest.mark.parametrize("stored", [HEAD, EMBEDDINGS, "both"])
def test_tied_weights_stored_once_or_twice_with_one_value_are_one_tensor(
    stored: str, folder: Path
) -> None:
    value = embeddings(folder).clone()
    if stored != EMBEDDINGS:
        weights(lambda all_: all_.update({HEAD: value}))(folder)
    if stored == HEAD:
        weights(lambda all_: all_.pop(EMBEDDINGS))(folder)
    model = load_pretrained(str(folder)).model
    assert model.get_parameter(HEAD) is model.get_parameter(EMBEDDINGS)
    assert model.get_parameter(HEAD).equal(value)


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere"])
def test_a_model_that_is_nowhere_is_told_with_what_would_do(name: str, tmp_path: Path) -> None:
    with pytest.raises(GermlineError, match=r"model: .*nowhere.* is no folder"):
        germline.train({"model": name}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_of_another_model_is_told_by_its_token() -> None:
    tiny = inprocess()
    known = len(tiny.pretrained.tokenizer)
    tiny.pretrained.tokenizer.add_tokens(["foxes"])
    with pytest.raises(GermlineError, match=rf"has token {known}, but the model .*another model"):
        tiny.generate([None], [Example(0, "foxes", "", False)], Decoding(2))


def test_padding_the_model_does_not_know_is_no_obstacle() -> None:
    tiny = inprocess()
    examples = [Example(0, "fox", "", False), Example(1, "the quick brown fox", "", False)]
    expected = tiny.generate([None], examples, Decoding(4))
    tiny.pretrained.tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    assert tiny.generate([None], examples, Decoding(4)) == expected


# --- numbers out of range


def test_members_thrown_far_off_write_something_all_the_same() -> None:
    logits = torch.tensor([[float("nan")] * 3, [float("inf")] * 3, [0.0, 1.0, 2.0]])
    for temperature in (0.0, 1.0):
        tokens = choose_tokens(logits, torch.full((3,), 0.9), Decoding(1, temperature, top_p=0.9))
        assert 0 <= tokens.min() <= tokens.max() < 3


@pytest.mark.parametrize("space", [Full(), LowRank(), Lora()])
@pytest.mark.parametrize("model", ["toy", "qwen2"])
def test_an_update_out_of_range_stops_the_run(model: str, space: Full | LowRank | Lora) -> None:
    with pytest.raises(
        GermlineError, match=r"made .* infinite, with strategy\.learning_rate=1e\+3"
    ):
        engine(model, space).apply(Update(3, 0, 0.3, 1e38, (9.0, 9.0)))


# --- models that are no folder: names of the hub, its cache, and a hub that cannot be reached


NAME = "owner/model"


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """Let the hub have an address that nobody listens at, and its cache be an empty folder."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub" / "models--owner--model"


@pytest.mark.parametrize("name", ["no such", "a/b/c", "no such/model", "org/"])
def test_what_is_no_name_of_the_hub_is_refused_without_a_request(cache, monkeypatch, name):
    monkeypatch.setattr(pretrained, "get_session", lambda: pytest.fail("the network was used"))
    for load in (load_pretrained, shape_of):
        with pytest.raises(GermlineError, match=rf"model: '{name}' is no folder in .*OWNER/NAME"):
            load(name)


def test_a_model_in_the_cache_is_loaded_where_the_hub_cannot_be_reached(cache, caplog):
    save_tiny(cache / "snapshots" / "abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc")
    with caplog.at_level(logging.INFO):
        assert load_pretrained(NAME).source == NAME
    assert not [message for message in caplog.messages if "Retry" in message]
    assert not constants.HF_HUB_OFFLINE


WORDS = len(tokenizer())
PADDING_ID = WORDS + 5


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes an id of the padding most of the time, where a text began with a word."""
    folder = save_tiny(
        tmp_path_factory.mktemp("model") / "padded",
        vocab_size=WORDS + 14,
        tie_word_embeddings=False,
        eos_token_id=None,
    )
    (first, *_), *_ = inprocess(str(folder)).generate([None], examples(), Decoding(1))
    held = load_file(folder / "model.safetensors")
    head = held["lm_head.weight"]
    head[PADDING_ID] = 10 * head[first.tokens[0]]
    save_file(held, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_an_id_of_the_padding_is_a_token_without_text(padded: Path) -> None:
    engine = inprocess(str(padded), LowRank())
    members = [None, *population().members]
    completions = engine.generate(members, examples(), Decoding(6))
    written = [one for row in completions for one in row]
    assert any(PADDING_ID in one.tokens for one in written)
    words = engine.pretrained.tokenizer
    for one in written:
        known = [token for token in one.tokens if token < WORDS]
        assert one.text == Detokenizer(words)(known)
        assert len(one.tokens) == 6 or one.finish == "eos"
    logs = engine.log_probabilities(members, examples(), completions)
    assert torch.tensor([log for row in logs for one in row for log in one]).isfinite().all()


def test_served_texts_leave_it_out_too(padded: Path) -> None:
    words = load_pretrained(str(padded)).tokenizer
    fox = words("fox")["input_ids"]
    found = cut_completion(Detokenizer(words), [*fox, PADDING_ID], 3, Decoding(9))
    assert (found.text, found.tokens) == ("fox", (*fox, PADDING_ID))


def test_a_tokenizer_in_python_writes_nothing_for_it_either() -> None:
    words = ByT5Tokenizer()
    ids = words("fox", add_special_tokens=False)["input_ids"]
    assert Detokenizer(words)([ids[0], len(words), *ids[1:], len(words) + 9]) == "fox"


def test_such_a_model_is_trained_and_exported_with_all_its_rows(
    padded: Path, tmp_path: Path
) -> None:
    settings = {"model": str(padded), "task": {"kind": "conciseness", "max_new_tokens": 4}}
    training = germline.train(
        settings
        | {
            "strategy": {"population": 4, "sigma": 0.01, "learning_rate": 0.01},
            "batch_size": 2,
            "generations": 1,
            "held_out": {"examples": 2},
        }
        | {"engine": {"device": "cpu", "threads": 1}},
        tmp_path / "run",
    )
    assert len(list(training)) == 1
    germline.export(tmp_path / "run", tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert exported.get_input_embeddings().num_embeddings == WORDS + 14
