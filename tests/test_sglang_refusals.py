"""Servers that a run cannot use: refused at its start, with the flag or command to use."""

import base64
import pickle
import re

import pytest
import torch

from germline.run.build_parts import make_engine
from germline.types import GermlineError
from tests.scripted_server import Scripted, listening
from tests.simulated_sglang import (
    DECODING,
    EXAMPLES,
    LINEAR,
    MEMBERS,
    SimulatedSglang,
    config,
    opened,
)


@pytest.fixture
def simulated():
    return SimulatedSglang()


@pytest.fixture
def script(simulated):
    with listening(simulated.reply) as found:
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
            r"adapters of down_proj, gate_proj, up_proj: .* --lora-target-modules down_proj",
        ),
        ({"dp_size": 2}, r"has --dp-size 2: start it with --dp-size 1"),
        (
            {"device": "cpu", "tp_size": 2},
            r"intermediate_size=96 to a multiple of 64, .*: use engine\.kind=inprocess",
        ),
        ({"version": "0.5.9"}, r"SGLang 0\.5\.9, .* use 0\.5\.23 or newer"),
        (
            {"version": None},
            r"no SGLang server that can be used here \(/server_info has no version",
        ),
    ],
)
def test_a_server_started_otherwise_is_refused_with_the_flag_it_needs(
    script, simulated, started, words
):
    simulated.started = started
    with pytest.raises(GermlineError, match=words):
        make_engine(config(script, {"kind": "low_rank", "rank": 4}))


def test_a_server_with_all_or_unreported_target_modules_is_accepted(script, simulated):
    for modules in (["all"], None):
        simulated.started = {"lora_target_modules": modules}
        with opened(script) as engine:
            engine.generate(MEMBERS[:1], EXAMPLES, DECODING)


def test_weights_that_the_server_ignores_are_named(script, simulated, monkeypatch):
    """Mistake 16: SGLang reports success also for names it does not know."""
    write = simulated.update_weights_from_tensor

    def ignore_norms(body):
        (name, _), *_ = pickle.loads(base64.b64decode(body["serialized_named_tensors"][0]))
        return (200, {"success": True}) if "norm" in name else write(body)

    monkeypatch.setattr(simulated, "update_weights_from_tensor", ignore_norms)
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


def test_a_server_without_checksums_is_logged(script, simulated, caplog):
    simulated.instead["/weights_checker"] = (404, {"detail": "Not Found"})
    with opened(script, "low_rank") as engine:
        engine.generate([None], EXAMPLES, DECODING)
    assert "cannot check that the server writes" in caplog.text


def test_a_dense_run_needs_no_adapters(script, simulated):
    simulated.started = {"enable_lora": False}
    with opened(script, "full") as engine:
        engine.generate(MEMBERS[:1], EXAMPLES, DECODING)


def test_another_model_is_refused(script, simulated):
    simulated.model = {"architectures": ["LlamaForCausalLM"]}
    simulated.scores = tuple(score - 0.5 for score in simulated.scores)
    words = r"has a/model, a Llama\w+, with other weights than .*, a Qwen2\w+: .* differ by 0\.5 on"
    with pytest.raises(GermlineError, match=words):
        make_engine(config(script))


def test_a_model_may_have_another_class_on_the_server(script, simulated):
    simulated.model = {"architectures": ["Qwen2ForConditionalGeneration"]}
    with opened(script) as engine:
        engine.generate([None], EXAMPLES, DECODING)


def test_another_dtype_than_engine_dtype_is_refused(script, simulated):
    simulated.started = {"dtype": "bfloat16"}
    with pytest.raises(GermlineError, match=r"engine\.dtype=float32, but .* --dtype bfloat16"):
        make_engine(config(script, dtype="float32"))
    with opened(script) as engine:
        assert engine.dtype == torch.bfloat16


@pytest.mark.parametrize(
    "answer",
    [(404, {"detail": "Not Found"}), (200, "hello"), (200, ["a"]), (200, "<html>hi</html>")],
)
def test_another_service_behind_the_url_is_an_error(script, simulated, answer):
    simulated.instead = {"/server_info": answer}
    with pytest.raises(GermlineError, match=r"engine\.base_url=http://127.*(no SGLang|web page)"):
        make_engine(config(script))


def test_an_unreachable_server_is_an_error_with_the_start_command():
    nowhere = Scripted(lambda *_: (200, ""), "http://127.0.0.1:9")
    with pytest.raises(GermlineError, match=r"cannot be reached .* -m sglang\.launch_server"):
        make_engine(config(nowhere))
