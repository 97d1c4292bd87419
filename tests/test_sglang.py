"""The engine sglang against a simulated server: its requests, and the responses it refuses.

tests/engines_real tests with the real server that members are evaluated correctly.
"""

import base64
import pickle
import re
from contextlib import closing
from typing import Any

import pytest
import torch

from germline.config import Sglang, load_config
from germline.engines.sglang import client
from germline.record import RunDirectory
from germline.run import Training, evaluate, resume, train
from germline.run.build_parts import make_engine
from germline.types import Decoding, EngineLost, GermlineError, Update
from tests.scripted_server import Scripted, listening
from tests.simulated_sglang import (
    DECODING,
    EXAMPLES,
    MEMBERS,
    SimulatedSglang,
    config,
    opened,
    served,
)
from tests.tiny_engines import folder

UPDATE = Update(7, 0, 0.02, 0.5, (0.3, -0.2))


@pytest.fixture
def simulated():
    return SimulatedSglang()


@pytest.fixture
def script(simulated):
    with listening(simulated.reply) as found:
        yield found


def written(script: Scripted) -> dict[str, torch.Tensor]:
    """Return the tensors that were last written, by name."""
    tensors: dict[str, torch.Tensor] = {}
    for body in script.bodies("/update_weights_from_tensor"):
        (blob,) = body["serialized_named_tensors"]
        tensors |= dict(pickle.loads(base64.b64decode(blob)))
    return tensors


# --- requests


def test_members_are_adapters_with_new_names_in_every_request_and_the_center_has_none(script):
    with opened(script) as engine:
        engine.generate([None, *MEMBERS], EXAMPLES, DECODING)
        engine.generate([None, *MEMBERS], EXAMPLES, DECODING)
    sent = script.bodies("/load_lora_adapter_from_tensors")
    names = [body["lora_name"] for body in sent]
    assert len(set(names)) == len(names) == 2 * len(MEMBERS)
    first, second = script.bodies("/generate")
    assert first["lora_path"] == [one for one in [None, *names[:4]] for _ in EXAMPLES]
    assert second["lora_path"] == [one for one in [None, *names[4:]] for _ in EXAMPLES]
    # A pickle holds no more than the tensors, which may be views of larger ones.
    for body in sent:
        blob = base64.b64decode(body["serialized_named_tensors"][0])
        tensors = pickle.loads(blob)
        assert len(blob) < 1.1 * sum(one.nbytes for one in tensors.values()) + 400 * len(tensors)


@pytest.mark.parametrize(
    ("status", "error", "is_unloaded"), [(400, GermlineError, True), (503, EngineLost, False)]
)
def test_adapters_are_unloaded_unless_it_is_lost(script, simulated, status, error, is_unloaded):
    with opened(script) as engine:
        engine.generate(MEMBERS, EXAMPLES, DECODING)
        assert simulated.loaded == []
        script.asked.clear()
        simulated.instead["/generate"] = (status, "no")
        with pytest.raises(error, match=rf"/generate: .*{status}.*no"):
            engine.generate(MEMBERS, EXAMPLES, DECODING)
    assert bool(script.bodies("/unload_lora_adapter")) == is_unloaded


@pytest.mark.parametrize(
    ("setting", "flag", "most"), [("auto", None, 4), (3, None, 3), ("auto", 2, 2), (3, 2, 2)]
)
def test_more_members_than_it_holds_are_evaluated_in_groups(script, simulated, setting, flag, most):
    simulated.started["max_loaded_loras"] = flag
    with opened(script, adapters=setting) as engine:
        found = engine.generate(MEMBERS, EXAMPLES, DECODING)
    assert (len(found), simulated.most_loaded) == (4, most)


def test_every_process_of_a_tensor_parallel_server_gets_its_copy(script, simulated):
    simulated.started["tp_size"] = 2
    with opened(script) as engine:
        engine.generate(MEMBERS[:1], EXAMPLES, DECODING)
    for path in ("/load_lora_adapter_from_tensors", "/update_weights_from_tensor"):
        sent = [body["serialized_named_tensors"] for body in script.bodies(path)]
        assert sent
        assert all(first == second for first, second in sent)


@pytest.mark.parametrize("space", ["low_rank", "full"])
def test_the_new_center_is_written_after_an_update(script, space):
    with opened(script, space) as engine:
        engine.apply(UPDATE)
        engine.generate([None], EXAMPLES, DECODING)
        masters = {one.name: engine.weights.tensors[one.name] for one in engine.weights.searched}
        found = written(script)
    assert found.keys() == masters.keys()
    assert all(body["flush_cache"] for body in script.bodies("/update_weights_from_tensor"))
    assert all(torch.equal(found[name], masters[name]) for name in masters)


def test_weights_are_sent_in_pieces_of_bounded_size(script, monkeypatch):
    monkeypatch.setattr(client, "CHUNK_BYTES", 20_000)
    with opened(script, "full") as engine:
        engine.generate([MEMBERS[0], None], EXAMPLES, DECODING)
        script.asked.clear()
        engine.generate([None], EXAMPLES, DECODING)
        assert not script.bodies("/begin_weight_update")  # the center is there already
        engine.apply(UPDATE)
        engine.generate([None], EXAMPLES, DECODING)
        sizes = []
        for body in script.bodies("/update_weights_from_tensor"):
            (blob,) = body["serialized_named_tensors"]
            sizes.append([one.nbytes for _, one in pickle.loads(base64.b64decode(blob))])
        assert written(script).keys() == {one.name for one in engine.weights.searched}
    assert len(script.bodies("/begin_weight_update")) == 1
    assert len(sizes) > 1
    assert all(sum(one) <= 20_000 or len(one) == 1 for one in sizes)


def test_nothing_is_written_for_the_space_lora(script):
    with opened(script, "lora") as engine:
        engine.apply(UPDATE)
        engine.generate([None, *MEMBERS], EXAMPLES, DECODING)
    assert not script.bodies("/begin_weight_update")
    assert not script.bodies("/update_weights_from_disk")


@pytest.mark.parametrize("left", ["theirs", "germline-of-another-run"])
def test_a_server_gets_its_own_weights_back_before_and_after(script, simulated, left, caplog):
    simulated.version = left
    with closing(served(script)) as engine:
        engine.generate([None], EXAMPLES, DECODING)
        assert simulated.version not in (left, "default")
    is_left = "an earlier run left its weights in the server" in caplog.text
    loaded = script.bodies("/update_weights_from_disk")
    assert [body["model_path"] for body in loaded] == ["a/model"] * (1 + is_left)
    assert is_left == (left != "theirs")
    assert simulated.version == ("default" if is_left else "theirs")


# --- responses that are refused


def restarting(simulated: SimulatedSglang, times: int) -> Any:
    """Restart the server, with its own weights, just before it generates."""
    left = [times]

    def reply(path: str, body: Any) -> tuple[int, Any]:
        if path == "/generate" and "return_logprob" not in body and left[0]:
            left[0] -= 1
            simulated.version, simulated.loaded = "default", []
        return simulated.reply(path, body)

    return reply


@pytest.mark.parametrize("space", ["low_rank", "lora", "full"])
def test_after_a_restart_of_the_server_everything_is_sent_again(simulated, space):
    with listening(simulated.reply) as script, opened(script, space) as engine:
        script.reply = restarting(simulated, 1)
        found = engine.generate(MEMBERS[:2], EXAMPLES, DECODING)
        assert [len(row) for row in found] == [3, 3]
        assert space == "lora" or simulated.version.startswith("germline-")
        generated = [body for body in script.bodies("/generate") if "return_logprob" not in body]
    assert len(generated) == (3 if space == "full" else 2)


def test_a_run_stops_where_another_keeps_writing_into_its_server(simulated):
    with listening(simulated.reply) as script, opened(script) as engine:
        script.reply = restarting(simulated, 1000)
        with pytest.raises(EngineLost, match="another run writes into the same server"):
            engine.generate([None], EXAMPLES, DECODING)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([], id="no answers"),
        pytest.param("hello", id="text"),
        pytest.param([{"output_ids": None, "meta_info": {}}] * 3, id="empty"),
        pytest.param([{"output_ids": [1], "meta_info": {}}] * 3, id="no version"),
    ],
)
def test_an_invalid_response_is_the_loss_of_the_engine(script, simulated, answer):
    with opened(script) as engine:
        simulated.instead["/generate"] = (200, answer)
        with pytest.raises(EngineLost, match=r"engine\.base_url=.* its response is invalid"):
            engine.generate([None], EXAMPLES, DECODING)


def test_texts_that_end_for_no_known_reason_are_refused(script, simulated, monkeypatch):
    def cut(ids, body):
        row = SimulatedSglang.row(simulated, ids, body)
        return row if body.get("return_logprob") else {**row, "output_ids": [9]}

    with opened(script) as engine:
        monkeypatch.setattr(simulated, "row", cut)
        with pytest.raises(
            GermlineError, match="ended after 1 of 4 tokens, without a token or stop string"
        ):
            engine.generate([None], EXAMPLES, Decoding(max_new_tokens=4, stop=("xyz",)))
    first, second = script.bodies("/generate")
    assert [one["sampling_params"][0]["stop"] for one in (first, second)] == [["xyz"], []]
    assert first["sampling_params"][0]["skip_special_tokens"] is False  # `</tool_call>` is one


def test_a_server_that_ignores_sampling_seeds_is_warned_about_once(script, simulated, caplog):
    warm = Decoding(max_new_tokens=4, temperature=0.7, top_p=0.9)
    with opened(script) as engine:
        engine.generate([None], EXAMPLES, DECODING)
        assert "--enable-deterministic-inference" not in caplog.text
        engine.generate([None], EXAMPLES, warm)
        engine.generate([None], EXAMPLES, warm)
    assert caplog.text.count("--enable-deterministic-inference") == 1
    sent = script.bodies("/generate")[-1]["sampling_params"]
    assert len({one["sampling_seed"] for one in sent}) == len(EXAMPLES)
    assert {(one["temperature"], one["top_p"]) for one in sent} == {(0.7, 0.9)}


# --- servers that a run cannot use


REFUSED = {
    "several copies of the weights": ({"dp_size": 2}, {}, r"--dp-size 1"),
    "another dtype": ({"dtype": "bfloat16"}, {"dtype": "float32"}, r"engine\.dtype=float32, but"),
    "no server_info": ({"tp_size": "many"}, {}, r"engine\.base_url=http://127"),
}


@pytest.mark.parametrize(("started", "section", "message"), REFUSED.values(), ids=REFUSED)
def test_a_server_started_in_another_way_is_refused(script, simulated, started, section, message):
    simulated.started = started
    with pytest.raises(GermlineError, match=message):
        make_engine(config(script, **section))


@pytest.mark.parametrize("answer", [(404, {}), (200, ["a"]), (200, "<html>"), None])
def test_another_service_or_model_behind_the_url_is_refused(script, simulated, answer):
    message = r"engine\.base_url=http://127"
    if answer:
        simulated.instead = {"/server_info": answer}
    else:
        simulated.scores = tuple(score - 0.5 for score in simulated.scores)
        message += r".* with other weights than model=.* differ by 0\.5"
    with pytest.raises(GermlineError, match=message):
        make_engine(config(script))


def test_a_server_without_adapters_and_checksums_serves_a_dense_run(script, simulated, caplog):
    simulated.started = {"enable_lora": False, "dtype": "bfloat16"}
    simulated.instead["/weights_checker"] = (404, {"detail": "Not Found"})
    with opened(script, "full") as engine:
        engine.generate(MEMBERS[:1], EXAMPLES, DECODING)
        assert engine.dtype == torch.bfloat16
    assert "cannot check that the server writes" in caplog.text


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


# --- runs


def settings(script):
    return load_config(
        {
            "model": str(folder("qwen2")),
            "task": {"kind": "conciseness", "max_new_tokens": 4},
            "space": "low_rank",
            "engine": {"kind": "sglang", "base_url": script.url, "retry_timeout_s": 0.0},
            "strategy": {"population": 4, "sigma": 0.02},
            "held_out": {"examples": 2},
            "record": {"tensorboard": False},
            "graders": {"workers": 1},
            "batch_size": 2,
            "generations": 3,
        }
    )


@pytest.fixture
def alike(monkeypatch):
    """Let a run begin on the simulated server, which answers all members alike."""
    monkeypatch.setattr(Training, "_check_that_members_differ", lambda _self: None)


@pytest.mark.usefixtures("alike")
def test_a_run_that_lost_its_server_is_resumed_with_another(tmp_path):
    first, second = SimulatedSglang(), SimulatedSglang()
    with listening(first.reply) as script:
        training = train(settings(script), tmp_path / "run")
        running = iter(training)
        next(running)
        first.instead["/generate"] = (503, "gone")
        with pytest.raises(EngineLost, match="answered 503: gone"):
            next(running)
    assert len(RunDirectory.open(tmp_path / "run").journal.read()) == 1
    with listening(second.reply) as script:
        list(resume(tmp_path / "run", [f"engine.base_url={script.url}"]))
    directory = RunDirectory.open(tmp_path / "run")
    assert len(directory.journal.read()) == 3
    assert isinstance(directory.config.engine, Sglang)
    assert directory.config.engine.base_url == script.url
    assert second.version == "default"  # it got its own weights back


@pytest.mark.usefixtures("alike")
def test_evaluating_a_run_leaves_its_server_as_it_was(tmp_path):
    simulated = SimulatedSglang()
    with listening(simulated.reply) as script:
        list(train(settings(script), tmp_path / "run"))
        script.asked.clear()
        evaluate(str(tmp_path / "run"), limit=2)
    (body,) = script.bodies("/update_weights_from_disk")
    assert (body["model_path"], simulated.version) == ("a/model", "default")
    with pytest.raises(GermlineError, match=r"engine\.dtype cannot change"):
        resume(tmp_path / "run", ["generations=4", "engine.dtype=float16"])
