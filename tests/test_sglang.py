"""The SGLang engine against a script of a server: what is sent, and what is not believed.

That members play right is tested with the real server, in tests/engines_real.
"""

import base64
import pickle
from contextlib import closing
from typing import Any

import pytest
import torch

from germline.engines.sglang import client
from germline.types import Decoding, EngineLost, GermlineError, Update
from tests.pretended_sglang import DECODING, EXAMPLES, MEMBERS, Pretended, opened, served
from tests.scripted_server import Scripted, listening

UPDATE = Update(7, 0, 0.02, 0.5, (0.3, -0.2))


@pytest.fixture
def pretended():
    return Pretended()


@pytest.fixture
def script(pretended):
    with listening(pretended.reply) as found:
        yield found


def written(script: Scripted) -> dict[str, torch.Tensor]:
    """Return the tensors that were last written, by name."""
    tensors: dict[str, torch.Tensor] = {}
    for body in script.bodies("/update_weights_from_tensor"):
        (blob,) = body["serialized_named_tensors"]
        tensors |= dict(pickle.loads(base64.b64decode(blob)))
    return tensors


# --- what is sent


def test_members_are_adapters_named_anew_for_every_generation_and_the_center_is_none(script):
    with opened(script) as engine:
        engine.generate([None, *MEMBERS], EXAMPLES, DECODING)
        engine.generate([None, *MEMBERS], EXAMPLES, DECODING)
    names = [body["lora_name"] for body in script.bodies("/load_lora_adapter_from_tensors")]
    assert len(set(names)) == len(names) == 2 * len(MEMBERS)
    first, second = script.bodies("/generate")
    assert first["lora_path"] == [one for one in [None, *names[:4]] for _ in EXAMPLES]
    assert second["lora_path"] == [one for one in [None, *names[4:]] for _ in EXAMPLES]
    assert all("text" not in body for body in (first, second))


def test_adapters_are_taken_back_also_where_playing_failed(script, pretended):
    with opened(script) as engine:
        engine.generate(MEMBERS, EXAMPLES, DECODING)
        assert pretended.loaded == []
        pretended.instead["/generate"] = (400, "no")
        with pytest.raises(GermlineError, match=r"/generate: refused \(400\): no"):
            engine.generate(MEMBERS, EXAMPLES, DECODING)
    assert pretended.loaded == []


@pytest.mark.parametrize(
    ("setting", "flag", "most"), [("auto", None, 4), (3, None, 3), ("auto", 2, 2), (3, 2, 2)]
)
def test_more_members_than_the_server_holds_play_in_turns(script, pretended, setting, flag, most):
    pretended.started["max_loaded_loras"] = flag
    with opened(script, adapters=setting) as engine:
        found = engine.generate(MEMBERS, EXAMPLES, DECODING)
    assert (len(found), pretended.most_loaded) == (4, most)


def test_an_adapter_is_sent_alone_without_the_memory_it_was_cut_from(script):
    with opened(script, {"kind": "low_rank", "rank": 1}) as engine:
        engine.generate(MEMBERS, EXAMPLES, DECODING)
    for body in script.bodies("/load_lora_adapter_from_tensors"):
        blob = base64.b64decode(body["serialized_named_tensors"][0])
        tensors = pickle.loads(blob)
        assert len(blob) < 1.1 * sum(one.nbytes for one in tensors.values()) + 400 * len(tensors)


def test_every_process_of_a_tensor_parallel_server_gets_its_copy(script, pretended):
    pretended.started["tp_size"] = 2
    with opened(script) as engine:
        engine.generate(MEMBERS[:1], EXAMPLES, DECODING)
    for path in ("/load_lora_adapter_from_tensors", "/update_weights_from_tensor"):
        for body in script.bodies(path):
            first, second = body["serialized_named_tensors"]
            assert first == second


@pytest.mark.parametrize("space", ["low_rank", "full"])
def test_the_server_follows_an_update(script, space):
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
    assert len(begun) == 2  # the center stood there already
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


def test_nothing_is_written_for_adapters_beside_frozen_weights(script):
    with opened(script, "lora") as engine:
        engine.apply(UPDATE)
        engine.generate([None, *MEMBERS], EXAMPLES, DECODING)
    assert not script.bodies("/begin_weight_update")
    assert not script.bodies("/update_weights_from_disk")


def test_a_server_gets_its_own_weights_back(script, pretended):
    pretended.version = "theirs"
    with opened(script) as engine:
        engine.generate([None], EXAMPLES, DECODING)
        assert pretended.version.startswith("germline-")
    (body,) = script.bodies("/update_weights_from_disk")
    assert (body["model_path"], pretended.version) == ("a/model", "theirs")


def test_what_a_killed_run_left_in_a_server_is_replaced_first(script, pretended, caplog):
    pretended.version = "germline-of-another-run"
    with closing(served(script, "lora")) as engine:
        engine.generate([None], EXAMPLES, DECODING)
    assert [path for path, _ in script.asked if "weights" in path] == ["/update_weights_from_disk"]
    assert "a run left its weights there" in caplog.text


# --- what is not believed


def restarting(pretended: Pretended, times: int) -> Any:
    """Let the server start anew, with its own weights, just before it is to play."""
    left = [times]

    def reply(path: str, body: Any) -> tuple[int, Any]:
        if path == "/generate" and "return_logprob" not in body and left[0]:
            left[0] -= 1
            pretended.version, pretended.loaded = "default", []
        return pretended.reply(path, body)

    return reply


@pytest.mark.parametrize("space", ["low_rank", "lora", "full"])
def test_after_a_restart_of_the_server_everything_is_sent_and_played_again(pretended, space):
    with listening(pretended.reply) as script, opened(script, space) as engine:
        script.reply = restarting(pretended, 1)
        found = engine.generate(MEMBERS[:2], EXAMPLES, DECODING)
        assert [len(row) for row in found] == [3, 3]
        assert space == "lora" or pretended.version.startswith("germline-")
        played = [body for body in script.bodies("/generate") if "return_logprob" not in body]
    assert len(played) == (3 if space == "full" else 2)


def test_a_run_stops_where_another_keeps_writing_into_its_server(pretended):
    with listening(pretended.reply) as script, opened(script) as engine:
        script.reply = restarting(pretended, 1000)
        with pytest.raises(EngineLost, match="another run writes into the same server"):
            engine.generate([None], EXAMPLES, DECODING)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([], id="no answers"),
        pytest.param({"text": "hello"}, id="one answer"),
        pytest.param("hello", id="text"),
        pytest.param([{"text": "hello"}] * 3, id="no tokens"),
        pytest.param([{"output_ids": None, "meta_info": {}}] * 3, id="empty"),
        pytest.param([{"output_ids": [1], "meta_info": {}}] * 3, id="no version"),
    ],
)
def test_an_answer_that_makes_no_sense_is_the_loss_of_the_engine(script, pretended, said):
    with opened(script) as engine:
        pretended.instead["/generate"] = (200, said)
        with pytest.raises(EngineLost, match=r"engine\.base_url=.* its answer makes no sense"):
            engine.generate([None], EXAMPLES, DECODING)


def test_texts_that_end_where_nothing_ends_them_are_refused(script, pretended, monkeypatch):
    def cut(ids, body):
        row = Pretended.row(pretended, ids, body)
        return row if body.get("return_logprob") else {**row, "output_ids": [9]}

    with opened(script) as engine:
        monkeypatch.setattr(pretended, "row", cut)
        with pytest.raises(GermlineError, match="ended after 1 of 4 tokens, where nothing ends"):
            engine.generate([None], EXAMPLES, Decoding(max_new_tokens=4, stop=("xyz",)))
    first, second = script.bodies("/generate")
    assert [one["sampling_params"][0]["stop"] for one in (first, second)] == [["xyz"], []]


def test_luck_that_members_do_not_share_is_told_once(script, pretended, caplog):
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


def test_the_cost_of_members_written_one_by_one_is_told(script, caplog):
    with opened(script, "full"):
        assert "space.kind=low_rank" in caplog.text
    caplog.clear()
    with opened(script, "low_rank"):
        assert "one after another" not in caplog.text


def test_a_server_that_was_started_from_another_folder_is_told(script, caplog):
    with opened(script):
        assert "serves a/model, the run has model=" in caplog.text


def test_names_of_versions_tell_engines_apart(script):
    with opened(script) as one:
        one.generate([None], EXAMPLES, DECODING)
        ours = script.bodies("/update_weights_from_tensor")[-1]["weight_version"]
    with opened(script) as other:
        other.generate([None], EXAMPLES, DECODING)
        theirs = script.bodies("/update_weights_from_tensor")[-1]["weight_version"]
    assert ours != theirs


def test_nobody_is_asked_to_forget_adapters_once_the_server_is_lost(script, pretended):
    with opened(script) as engine:
        pretended.instead["/generate"] = (503, "gone")
        with pytest.raises(EngineLost):
            engine.generate(MEMBERS, EXAMPLES, DECODING)
    assert not script.bodies("/unload_lora_adapter")
