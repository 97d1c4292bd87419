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


def test_a_server_with_several_copies_of_the_weights_is_refused(script, simulated):
    simulated.started = {"dp_size": 2}
    with pytest.raises(GermlineError, match="--dp-size 1"):
        make_engine(config(script))


def test_a_refused_adapter_is_an_error_with_the_flags_of_the_server(script, simulated):
    simulated.instead["/load_lora_adapter_from_tensors"] = (400, {"error": "LoRA is not enabled"})
    with (
        opened(script, {"kind": "low_rank", "rank": 4}) as engine,
        pytest.raises(GermlineError, match=r"LoRA is not enabled.*--enable-lora --max-lora-rank 4"),
    ):
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
    simulated.scores = tuple(score - 0.5 for score in simulated.scores)
    with pytest.raises(GermlineError, match=r"with other weights than model=.* differ by 0\.5"):
        make_engine(config(script))


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
    with pytest.raises(GermlineError, match=r"engine\.base_url=http://127"):
        make_engine(config(script))


def test_an_unreachable_server_is_an_error():
    nowhere = Scripted(lambda *_: (200, ""), "http://127.0.0.1:9")
    with pytest.raises(GermlineError, match=r"engine\.base_url=.* cannot be reached"):
        make_engine(config(nowhere))
