"""The engine sglang against a simulated server: its requests, and the responses it refuses.

tests/engines_real tests with the real server that members are evaluated correctly.
"""

import base64
import pickle
from contextlib import closing
from typing import Any

import pytest
import torch

from germline.engines.sglang import client
from germline.types import Decoding, EngineLost, GermlineError, Update
from tests.scripted_server import Scripted, listening
from tests.simulated_sglang import DECODING, EXAMPLES, MEMBERS, SimulatedSglang, opened, served

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
    names = [body["lora_name"] for body in script.bodies("/load_lora_adapter_from_tensors")]
    assert len(set(names)) == len(names) == 2 * len(MEMBERS)
    first, second = script.bodies("/generate")
    assert first["lora_path"] == [one for one in [None, *names[:4]] for _ in EXAMPLES]
    assert second["lora_path"] == [one for one in [None, *names[4:]] for _ in EXAMPLES]
    assert all("text" not in body for body in (first, second))


def test_adapters_are_unloaded_also_after_a_failed_evaluation(script, simulated):
    with opened(script) as engine:
        engine.generate(MEMBERS, EXAMPLES, DECODING)
        assert simulated.loaded == []
        simulated.instead["/generate"] = (400, "no")
        with pytest.raises(GermlineError, match=r"/generate: refused \(400\): no"):
            engine.generate(MEMBERS, EXAMPLES, DECODING)
    assert simulated.loaded == []


@pytest.mark.parametrize(
    ("setting", "flag", "most"), [("auto", None, 4), (3, None, 3), ("auto", 2, 2), (3, 2, 2)]
)
def test_more_members_than_the_server_holds_are_evaluated_in_groups(
    script, simulated, setting, flag, most
):
    simulated.started["max_loaded_loras"] = flag
    with opened(script, adapters=setting) as engine:
        found = engine.generate(MEMBERS, EXAMPLES, DECODING)
    assert (len(found), simulated.most_loaded) == (4, most)


def test_an_adapter_is_sent_without_the_storage_it_is_a_view_of(script):
    with opened(script, {"kind": "low_rank", "rank": 1}) as engine:
        engine.generate(MEMBERS, EXAMPLES, DECODING)
    for body in script.bodies("/load_lora_adapter_from_tensors"):
        blob = base64.b64decode(body["serialized_named_tensors"][0])
        tensors = pickle.loads(blob)
        assert len(blob) < 1.1 * sum(one.nbytes for one in tensors.values()) + 400 * len(tensors)


def test_every_process_of_a_tensor_parallel_server_gets_its_copy(script, simulated):
    simulated.started["tp_size"] = 2
    with opened(script) as engine:
        engine.generate(MEMBERS[:1], EXAMPLES, DECODING)
    for path in ("/load_lora_adapter_from_tensors", "/update_weights_from_tensor"):
        for body in script.bodies(path):
            first, second = body["serialized_named_tensors"]
            assert first == second


@pytest.mark.parametrize("space", ["low_rank", "full"])
def test_the_new_center_is_written_after_an_update(script, space):
    with opened(script, space) as engine:
        engine.apply(UPDATE)
        engine.generate([None], EXAMPLES, DECODING)
        masters = {one.name: engine.weights.tensors[one.name] for one in engine.weights.searched}
        found = written(script)
    assert found.keys() == masters.keys()
    assert all(torch.equal(found[name], masters[name]) for name in masters)


def test_a_member_of_a_dense_space_is_written_and_the_center_after_it(script):
    with opened(script, "full") as engine:
        engine.generate([MEMBERS[0], None], EXAMPLES, DECODING)
        engine.generate([None], EXAMPLES, DECODING)
    begun = script.bodies("/begin_weight_update")
    assert len(begun) == 2  # the center was written already
    assert all(body["flush_cache"] for body in script.bodies("/update_weights_from_tensor"))


def test_weights_are_sent_in_pieces_of_bounded_size(script, monkeypatch):
    monkeypatch.setattr(client, "CHUNK_BYTES", 20_000)
    with opened(script, "full") as engine:
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


def test_a_server_gets_its_own_weights_back(script, simulated):
    simulated.version = "theirs"
    with opened(script) as engine:
        engine.generate([None], EXAMPLES, DECODING)
        assert simulated.version.startswith("germline-")
    (body,) = script.bodies("/update_weights_from_disk")
    assert (body["model_path"], simulated.version) == ("a/model", "theirs")


def test_the_weights_that_a_killed_run_left_are_reloaded_first(script, simulated, caplog):
    simulated.version = "germline-of-another-run"
    with closing(served(script, "lora")) as engine:
        engine.generate([None], EXAMPLES, DECODING)
    assert [path for path, _ in script.asked if "weights" in path] == ["/update_weights_from_disk"]
    assert "an earlier run left its weights in the server" in caplog.text


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
        pytest.param({"text": "hello"}, id="one answer"),
        pytest.param("hello", id="text"),
        pytest.param([{"text": "hello"}] * 3, id="no tokens"),
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


def test_the_cost_of_writing_members_one_after_another_is_logged(script, caplog):
    with opened(script, "full"):
        assert "space.kind=low_rank" in caplog.text
    caplog.clear()
    with opened(script, "low_rank"):
        assert "one after another" not in caplog.text


def test_a_server_started_from_another_folder_is_logged(script, caplog):
    with opened(script):
        assert "serves a/model, the run has model=" in caplog.text


def test_weight_versions_of_two_engines_differ(script):
    with opened(script) as one:
        one.generate([None], EXAMPLES, DECODING)
        ours = script.bodies("/update_weights_from_tensor")[-1]["weight_version"]
    with opened(script) as other:
        other.generate([None], EXAMPLES, DECODING)
        theirs = script.bodies("/update_weights_from_tensor")[-1]["weight_version"]
    assert ours != theirs


def test_no_adapter_is_unloaded_after_the_server_is_lost(script, simulated):
    with opened(script) as engine:
        simulated.instead["/generate"] = (503, "gone")
        with pytest.raises(EngineLost):
            engine.generate(MEMBERS, EXAMPLES, DECODING)
    assert not script.bodies("/unload_lora_adapter")
