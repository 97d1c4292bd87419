"""What only a real vLLM shows: its places for adapters, its caches, its weights, its server."""

import json
import os
import subprocess

import pytest

from germline.config import load_config
from germline.engines.pretrained import load_pretrained, save_pretrained
from germline.nano import NANO_DIR
from germline.record import RunDirectory
from germline.run import resume, train
from germline.run.build_parts import make_engine
from germline.types import EngineLost, GermlineError
from tests.engines_real.servers import kill, vllm_process
from tests.engines_real.stage import LAST, ROOT, TIMEOUT_S, interpreter

TOLERANCE = 1e-3


@pytest.fixture(scope="session")
def seen(tmp_path_factory):
    """Return what a scene wrote down; each is played once."""
    folder, known = tmp_path_factory.mktemp("scenes"), {}

    def of(scene):
        if scene not in known:
            command = [interpreter("vllm"), "-m", "tests.engines_real.vllm_scenes", scene]
            ended = subprocess.run(
                [*command, str(folder / scene)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            if ended.returncode:
                pytest.fail(f"{scene} ended with:\n{ended.stdout[-LAST:]}")
            known[scene] = json.loads((folder / scene).read_text())
        return known[scene]

    return of


# --- adapters


def test_more_members_than_places_all_play(seen):
    scene = seen("few_slots")
    assert scene["found"] == scene["expected"]


def test_sampling_again_draws_the_same(seen):
    first, second = seen("few_slots")["sampled"]
    assert first == second


def test_an_adapter_that_is_refused_stops_nothing_but_the_run(seen):
    scene = seen("few_slots")
    assert "no member has the name" in scene["refused"]
    assert scene["after refusal"] == scene["expected"]


def test_what_vllm_knows_of_a_prompt_never_meets_other_weights(seen):
    scene = seen("few_slots")
    assert scene["found later"] == scene["expected later"]
    assert scene["found at last"] == scene["expected at last"]
    # And the prompts are such that it would show: without new names and an emptied cache.
    assert scene["stale"] != scene["expected at last"]


# --- whole tensors


def test_members_leave_storage_and_bits_as_they_were(seen):
    scene = seen("dense")
    assert scene["moved"] == scene["traces"] == []
    assert scene["fused"]  # what they were written into is not what Hugging Face calls them


def test_weights_that_cannot_be_written_are_noticed(seen):
    assert "cannot write weights into this model" in seen("dense")["packed away"]


@pytest.mark.parametrize("space", ["full", "low_rank"])
def test_two_workers_play_the_members_of_one(seen, space):
    scene = seen("two_workers")[space]
    here, there = scene["digests"]
    assert here == there
    assert scene["tokens"] > 100
    assert scene["error"] < TOLERANCE


# --- behind a URL


def values(url):
    return {
        "generations": 3,
        "batch_size": 3,
        "held_out": {"examples": 3},
        "task": {"kind": "arithmetic", "max_new_tokens": 4},
        "strategy": {"population": 4, "learning_rate": 0.05},
        "shaping": "raw",
        "engine": {"kind": "vllm", "base_url": url, "retry_timeout_s": 0.5},
    }


@pytest.fixture(scope="session")
def killed(tmp_path_factory):
    """Play a run undisturbed, one whose server is killed, and the rest of that on another one."""
    folder = tmp_path_factory.mktemp("servers")
    python, log = interpreter("vllm"), folder / "log"
    with vllm_process(python, ROOT, log) as (url, server):
        for _ in train(values(url), folder / "whole"):
            pass
        torn = iter(train(values(url), folder / "torn"))
        next(torn)
        kill(server)
        with pytest.raises(EngineLost) as lost:
            next(torn)
    with vllm_process(python, ROOT, log) as (url, _):
        for _ in resume(folder / "torn", [f"engine.base_url={url}"]):
            pass
        refused = refusal(folder / "other", values(url))
    return folder, str(lost.value), refused


def refusal(model, config):
    """Ask the server for a model that is not quite its own."""
    pretrained = load_pretrained(str(NANO_DIR))
    changed = {name: one.clone() for name, one in pretrained.model.named_parameters()}
    next(iter(changed.values())).view(-1)[0] += 1e-6
    save_pretrained(pretrained, changed, model, pretrained.stored_dtype)
    with pytest.raises(GermlineError) as caught:
        make_engine(load_config({**config, "model": str(model)}))
    return str(caught.value)


def test_a_run_whose_server_is_killed_goes_on_with_another_one(killed):
    folder, lost, _ = killed
    assert "engine.base_url=" in lost
    whole, torn = (RunDirectory.open(folder / name).journal.read() for name in ("whole", "torn"))
    assert torn == whole


def test_a_model_that_differs_in_one_bit_is_refused(killed):
    _, _, refused = killed
    assert "whose weights have digest" in refused
