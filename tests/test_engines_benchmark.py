"""The benchmark of engines: all its variants do the same work, and what is not measured is said."""

import pytest
from peft import PeftModel

from benchmarks.engine_variants import MEMBERS, TOKENS, adapters_on_disk, ours, timed
from benchmarks.engines import endless, measured, rows
from germline.engines.pretrained import load_pretrained

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return endless("nano", tmp_path_factory.mktemp("endless") / "model")


def test_texts_of_its_models_run_for_all_their_tokens(model):
    with ours(model, "cpu", {"kind": "inprocess", "device": "cpu", "threads": 1}) as play:
        assert play(0) == TOKENS


def test_a_variant_that_does_less_work_is_refused():
    with pytest.raises(RuntimeError, match=f"lazy wrote 7 tokens, not {TOKENS}"):
        timed({"lazy": lambda _: 7}, 1, iter(range(10)).__next__)


def test_variants_take_turns_and_the_first_turn_is_not_counted():
    turns = []
    clock = iter([0, 100, 0, 200, *(0, 1, 0, 2) * 3]).__next__

    def variant(name):
        def play(turn):
            turns.append((name, turn))
            return TOKENS

        return play

    assert timed({name: variant(name) for name in "ab"}, 3, clock) == {"a": 1, "b": 2}
    assert turns == [(name, k) for k in range(4) for name in "ab"]


def test_peft_loads_the_adapters_it_writes(model, tmp_path):
    paths = adapters_on_disk(model, tmp_path)
    loaded = PeftModel.from_pretrained(load_pretrained(str(model)).model, paths[-1])
    beside = [value for name, value in loaded.named_parameters() if "lora_B" in name]
    assert len(paths) == MEMBERS
    assert beside
    assert all(value.any() for value in beside)


def test_what_is_not_measured_is_said(model, monkeypatch):
    monkeypatch.delenv("GERMLINE_VLLM_PYTHON", raising=False)
    found = measured("vllm", model, [])
    assert rows("nano", "vllm", found) == [
        "| nano | vllm | not measured: $GERMLINE_VLLM_PYTHON is not set | | | |"
    ]


def test_a_line_compares_with_the_inprocess_engine_of_its_process():
    found = rows("nano", "vllm", {"inprocess": 2.0, "other": 4.0})
    assert found[1] == f"| nano | vllm | other | 4.000 | {TOKENS / 4:,.0f} | 2.00 |"
