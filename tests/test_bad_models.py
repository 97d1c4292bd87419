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
from safetensors.torch import load_file, save_file

import germline
from germline.config import Full, Lora, LowRank
from germline.engines.pretrained import load_pretrained
from germline.engines.sampling import choose_tokens
from germline.types import Decoding, Example, GermlineError, Update
from tests.tiny import save_tiny
from tests.tiny_engines import engine, inprocess


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model") / "good")


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
        (config_json(model_type="bert"), r"\(model_type bert\) is a bidirectional encoder"),
        (
            config_json(model_type="t5"),
            r"\(model_type t5\) is an encoder-decoder model: give a dec",
        ),
        (config_json(model_type="vit"), r"\(model_type vit\) is no language model that transf"),
        (config_json(num_hidden_layers=9), "cannot be loaded .*num_hidden_layers"),
    ],
)
def test_a_damaged_model_folder_is_told_by_what_is_wrong(
    damage: Callable[[Path], object],
    message: str,
    good: Path,
    tmp_path: Path,
    said: Callable[[], str],
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
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
def test_a_quantized_model_is_refused(
    method: str, good: Path, tmp_path: Path, said: Callable[[], str]
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    name, dtype = QUANTISED[method]
    codes(name, dtype)(folder)
    if method:
        config_json(quantization_config={"quant_method": method, "bits": 4})(folder)
    libraries = set(sys.modules)
    with pytest.raises(GermlineError, match=r"^model: .* is quantized"):
        load_pretrained(str(folder))
    assert not {"bitsandbytes", "gptqmodel", "awq"} & (set(sys.modules) - libraries)
    assert said() == ""


def test_masks_kept_as_integers_do_not_make_a_model_quantized(good: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    mask = {"model.layers.0.self_attn.bias": torch.ones(4, 4, dtype=torch.uint8)}
    weights(lambda tensors: tensors.update(mask))(folder)
    load_pretrained(str(folder))


def test_weights_nobody_uses_are_told(
    good: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(good, folder)
    weights(lambda all_: all_.update({"model.extra.weight": torch.zeros(2)}))(folder)
    with caplog.at_level(logging.WARNING, "germline"):
        load_pretrained(str(folder))
    assert caplog.messages == [
        f"model: 1 tensors of {str(folder)!r} go unused, model.extra.weight first"
    ]


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "~/nowhere"])
def test_a_model_that_is_nowhere_is_told_with_what_would_do(name: str, tmp_path: Path) -> None:
    with pytest.raises(GermlineError, match=r"model: .*nowhere.* is no folder"):
        germline.train({"model": name}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("template", ["{% for %}", "{{ raise_exception('no user') }}", "{{ 1/0 }}"])
def test_a_chat_template_that_fails_is_told_with_a_remedy(template: str) -> None:
    tiny = inprocess()
    tiny.pretrained.tokenizer.chat_template = template
    with pytest.raises(GermlineError, match=r"chat template fails .* or set task\.chat=false"):
        tiny.generate([None], [Example(0, "hello", "", chat=True)], Decoding(2))


@pytest.mark.parametrize("chat", [True, False])
def test_a_prompt_that_is_too_long_is_told_by_us_alone(chat: bool, said: Callable[[], str]) -> None:
    tiny = inprocess()
    tiny.pretrained.tokenizer.model_max_length = 100
    with pytest.raises(GermlineError, match=r"context .* of 256: shorten"):
        tiny.generate([None], [Example(0, "fox " * 300, "", chat)], Decoding(2))
    assert said() == ""


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


def test_an_adapter_where_a_model_belongs_is_told_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(GermlineError, match=r"is a PEFT adapter, not a model: .* --merged"):
        load_pretrained(str(tmp_path))
