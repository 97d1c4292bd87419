"""Servers that are not what a run needs: refused at its start, with the flag or line that helps."""

import base64
import pickle
import re

import pytest
import torch

from germline.run.build_parts import make_engine
from germline.types import GermlineError
from tests.pretended_sglang import DECODING, EXAMPLES, LINEAR, MEMBERS, Pretended, config, opened
from tests.scripted_server import Scripted, listening


@pytest.fixture
def pretended():
    return Pretended()


@pytest.fixture
def script(pretended):
    with listening(pretended.reply) as found:
        yield found


@pytest.mark.parametrize(
    ("started", "words"),
    [
        (
            {"enable_lora": False},
            r"without adapters: start it with --enable-lora --max-lora-rank 4",
        ),
        ({"max_lora_rank": 2}, r"no adapters above rank 2: start it with .*--max-lora-rank 4"),
        (
            {"lora_target_modules": LINEAR[:4]},
            r"beside down_proj, gate_proj, up_proj: .* --lora-target-modules down_proj",
        ),
        ({"dp_size": 2}, r"has --dp-size 2: start it with --dp-size 1"),
        ({"version": "0.5.9"}, r"SGLang 0\.5\.9, .* use 0\.5\.23 or newer"),
        (
            {"version": None},
            r"no SGLang server that can be used here \(it does not tell its version",
        ),
    ],
)
def test_a_server_started_otherwise_is_refused_with_the_flag_it_needs(
    script, pretended, started, words
):
    pretended.started = started
    with pytest.raises(GermlineError, match=words):
        make_engine(config(script, {"kind": "low_rank", "rank": 4}))


def test_a_server_that_takes_all_layers_or_does_not_tell_is_tried(script, pretended):
    for told in (["all"], None):
        pretended.started = {"lora_target_modules": told}
        with opened(script) as engine:
            engine.generate(MEMBERS[:1], EXAMPLES, DECODING)


def test_weights_that_do_not_arrive_are_named(script, pretended, monkeypatch):
    """Mistake 16: SGLang says "Success" also to names it does not know."""
    took = pretended.update_weights_from_tensor

    def deaf(body):
        (name, _), *_ = pickle.loads(base64.b64decode(body["serialized_named_tensors"][0]))
        return (200, {"success": True}) if "norm" in name else took(body)

    monkeypatch.setattr(pretended, "update_weights_from_tensor", deaf)
    with pytest.raises(GermlineError) as refused:
        make_engine(config(script, "full"))
    named = re.findall(r"[a-z0-9_.]+\.weight", str(refused.value))
    assert named == [
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.norm.weight",
    ]
    with opened(script, "low_rank") as engine:
        engine.generate([None], EXAMPLES, DECODING)


def test_where_a_server_has_no_checksums_that_is_said(script, pretended, caplog):
    pretended.instead["/weights_checker"] = (404, {"detail": "Not Found"})
    with opened(script, "low_rank") as engine:
        engine.generate([None], EXAMPLES, DECODING)
    assert "cannot be looked at" in caplog.text


def test_a_run_without_adapters_needs_none(script, pretended):
    pretended.started = {"enable_lora": False}
    with opened(script, "full") as engine:
        engine.generate(MEMBERS[:1], EXAMPLES, DECODING)


def test_another_model_is_refused(script, pretended):
    pretended.model = {"architectures": ["LlamaForCausalLM"]}
    pretended.scores = tuple(score - 0.5 for score in pretended.scores)
    words = r"has a/model, a Llama\w+, with other weights than .*, a Qwen2\w+: .* differ by 0\.5 on"
    with pytest.raises(GermlineError, match=words):
        make_engine(config(script))


def test_a_model_may_have_another_class_on_the_server(script, pretended):
    pretended.model = {"architectures": ["Qwen2ForConditionalGeneration"]}
    with opened(script) as engine:
        engine.generate([None], EXAMPLES, DECODING)


def test_another_dtype_than_asked_for_is_refused(script, pretended):
    pretended.started = {"dtype": "bfloat16"}
    with pytest.raises(GermlineError, match=r"engine\.dtype=float32, but .* --dtype bfloat16"):
        make_engine(config(script, dtype="float32"))
    with opened(script) as engine:
        assert engine.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "said", [(404, {"detail": "Not Found"}), (200, "hello"), (200, ["a"]), (200, "<html>hi</html>")]
)
def test_what_is_no_sglang_server_is_told_with_how_to_start_one(script, pretended, said):
    pretended.instead = {"/server_info": said}
    with pytest.raises(GermlineError, match=r"engine\.base_url=http://127.*(no SGLang|web page)"):
        make_engine(config(script))


def test_where_no_server_listens_the_way_to_start_one_is_told():
    nowhere = Scripted(lambda *_: (200, ""), "http://127.0.0.1:9")
    with pytest.raises(GermlineError, match=r"cannot be reached .* -m sglang\.launch_server"):
        make_engine(config(nowhere))
