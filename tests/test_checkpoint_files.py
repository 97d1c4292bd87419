"""Model folders whose files are incomplete or contradict each other."""

import json
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


def test_a_missing_shard_is_not_made_good_by_older_weights_beside_it(
    sharded: Path, whole: Path
) -> None:
    torch.save(load_file(whole / "model.safetensors"), sharded / "pytorch_model.bin")
    next(sharded.glob("model-*.safetensors")).unlink()
    with pytest.raises(GermlineError, match=r"model: .* cannot be loaded"):
        load_pretrained(str(sharded))


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
