"""Model folders whose files are incomplete, double or contradict each other."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from germline.engines.pretrained import load_pretrained
from germline.types import GermlineError
from tests.tiny import save_tiny

EMBEDDINGS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("model") / "whole")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


@pytest.fixture
def sharded(folder: Path) -> Path:
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    assert (folder / INDEX).exists()
    return folder


def embeddings(folder: Path) -> torch.Tensor:
    return load_pretrained(str(folder)).model.get_parameter(EMBEDDINGS)


def change_weights(folder: Path, **tensors: torch.Tensor) -> None:
    held = load_file(folder / "model.safetensors")
    save_file(held | tensors, folder / "model.safetensors", {"format": "pt"})


def test_shards_are_the_same_model(sharded: Path, whole: Path) -> None:
    assert embeddings(sharded).equal(embeddings(whole))


def test_missing_shards_are_named_with_their_index(sharded: Path) -> None:
    first, second, *others = sorted(sharded.glob("model-*.safetensors"))
    first.unlink()
    files = f"of the {2 + len(others)} files that {INDEX} lists"
    with pytest.raises(GermlineError, match=f"^model: .* lacks {first.name}, {files}: copy what"):
        load_pretrained(str(sharded))
    second.unlink()
    with pytest.raises(GermlineError, match=f"lacks {first.name}, {second.name}, {files}"):
        load_pretrained(str(sharded))


def test_a_missing_shard_is_not_made_good_by_older_weights_beside_it(
    sharded: Path, whole: Path
) -> None:
    torch.save(load_file(whole / "model.safetensors"), sharded / "pytorch_model.bin")
    next(sharded.glob("model-*.safetensors")).unlink()
    with pytest.raises(GermlineError, match="lacks model-0000"):
        load_pretrained(str(sharded))


def test_a_damaged_index_is_told(sharded: Path) -> None:
    (sharded / INDEX).write_text("{")
    with pytest.raises(GermlineError, match="a file in that folder is damaged: get it again"):
        load_pretrained(str(sharded))


def test_of_safetensors_and_bin_the_safetensors_are_read_and_the_other_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = embeddings(folder)
    other = {name: one + 1 for name, one in load_file(folder / "model.safetensors").items()}
    torch.save(other, folder / "pytorch_model.bin")
    with caplog.at_level(logging.WARNING, "germline"):
        assert embeddings(folder).equal(expected)
    assert caplog.messages == [
        f"model: {str(folder)!r} holds the weights more than once: model.safetensors is read, "
        "pytorch_model.bin is not; remove the files that are out of date"
    ]


def test_one_set_of_weights_is_no_reason_to_warn(
    folder: Path, sharded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "germline"):
        embeddings(sharded)
    assert not caplog.messages


def test_tied_weights_stored_with_different_values_are_named_with_the_setting(
    folder: Path,
) -> None:
    change_weights(folder, **{HEAD: embeddings(folder) + 0.5})
    with pytest.raises(
        GermlineError,
        match=rf"holds {HEAD} and {EMBEDDINGS} with different values, .*tie_word_embeddings=true",
    ):
        load_pretrained(str(folder))
    config = folder / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "tie_word_embeddings": False}))
    model = load_pretrained(str(folder)).model  # the remedy
    assert not model.get_parameter(HEAD).equal(model.get_parameter(EMBEDDINGS))


@pytest.mark.parametrize("stored", [HEAD, EMBEDDINGS, "both"])
def test_tied_weights_stored_once_or_twice_with_one_value_are_one_tensor(
    stored: str, folder: Path
) -> None:
    value = embeddings(folder).clone()
    change_weights(folder, **{HEAD: value})
    if stored == HEAD:
        held = load_file(folder / "model.safetensors")
        del held[EMBEDDINGS]
        save_file(held, folder / "model.safetensors", {"format": "pt"})
    model = load_pretrained(str(folder)).model
    assert model.get_parameter(HEAD) is model.get_parameter(EMBEDDINGS)
    assert model.get_parameter(HEAD).equal(value)
