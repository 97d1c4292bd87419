"""Models with more token ids than their tokenizer: ids of the padding are tokens without text."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, ByT5Tokenizer

import germline
from germline.config import LowRank
from germline.engines.pretrained import load_pretrained
from germline.engines.rows_in_progress import Detokenizer, cut_completion
from germline.types import Decoding
from tests.tiny import save_tiny, tokenizer
from tests.tiny_engines import examples, inprocess, population

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
