"""What only a real vLLM shows: its adapter slots, caches, weights and server."""

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
from tests.engines_real.recordings import ROOT, SHOWN, TIMEOUT_S, interpreter
from tests.engines_real.servers import kill, vllm_process

TOLERANCE = 1e-3


@pytest.fixture(scope="session")
def observed(tmp_path_factory):
    """Return a function that runs a scenario, once, and returns its observations."""
    folder, known = tmp_path_factory.mktemp("scenarios"), {}

    def of(scenario):
        if scenario not in known:
            command = [interpreter("vllm"), "-m", "tests.engines_real.vllm_scenarios", scenario]
            ended = subprocess.run(
                [*command, str(folder / scenario)],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            if ended.returncode:
                pytest.fail(f"{scenario} ended with:\n{ended.stdout[-SHOWN:]}")
            known[scenario] = json.loads((folder / scenario).read_text())
        return known[scenario]

    return of


# --- adapters


def test_more_members_than_slots_are_all_evaluated(observed):
    scenario = observed("few_slots")
    assert scenario["found"] == scenario["expected"]


def test_repeated_sampling_gives_the_same_texts(observed):
    first, second = observed("few_slots")["sampled"]
    assert first == second


def test_after_a_refused_adapter_vllm_still_works(observed):
    scenario = observed("few_slots")
    assert "no member has the name" in scenario["refused"]
    assert scenario["after refusal"] == scenario["expected"]


def test_the_prefix_cache_is_never_used_with_other_weights(observed):
    scenario = observed("few_slots")
    assert scenario["found later"] == scenario["expected later"]
    assert scenario["found at last"] == scenario["expected at last"]
    # The prompts can show it: the output is stale without new names and an emptied cache.
    assert scenario["stale"] != scenario["expected at last"]


# --- whole tensors


def test_evaluations_do_not_change_storage_or_bits_of_the_weights(observed):
    scenario = observed("dense")
    assert scenario["moved"] == scenario["changed"] == []
    assert scenario["fused"]  # members are written into tensors that Hugging Face does not have


def test_weights_that_cannot_be_written_are_refused(observed):
    assert "cannot write weights into this model" in observed("dense")["packed away"]


@pytest.mark.parametrize("space", ["full", "low_rank"])
def test_two_workers_evaluate_the_same_members_as_inprocess(observed, space):
    scenario = observed("two_workers")[space]
    here, there = scenario["digests"]
    assert here == there
    assert scenario["tokens"] > 100
    assert scenario["error"] < TOLERANCE


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
    """Train one run to its end, and one whose server is killed and that resumes on another."""
    folder = tmp_path_factory.mktemp("servers")
    python, log = interpreter("vllm"), folder / "log"
    with vllm_process(python, ROOT, log) as (url, server):
        for _ in train(values(url), folder / "whole"):
            pass
        interrupted = iter(train(values(url), folder / "interrupted"))
        next(interrupted)
        kill(server)
        with pytest.raises(EngineLost) as lost:
            next(interrupted)
    with vllm_process(python, ROOT, log) as (url, _):
        for _ in resume(folder / "interrupted", [f"engine.base_url={url}"]):
            pass
        refused = refusal(folder / "other", values(url))
    return folder, str(lost.value), refused


def refusal(model, config):
    """Return the error for a model that differs from the server's in one weight."""
    pretrained = load_pretrained(str(NANO_DIR))
    changed = {name: one.clone() for name, one in pretrained.model.named_parameters()}
    next(iter(changed.values())).view(-1)[0] += 1e-6
    save_pretrained(pretrained, changed, model, pretrained.stored_dtype)
    with pytest.raises(GermlineError) as caught:
        make_engine(load_config({**config, "model": str(model)}))
    return str(caught.value)


def test_a_run_whose_server_is_killed_resumes_with_another_one(killed):
    folder, lost, _ = killed
    assert "engine.base_url=" in lost
    whole, interrupted = (
        RunDirectory.open(folder / name).journal.read() for name in ("whole", "interrupted")
    )
    assert interrupted == whole


def test_a_model_that_differs_in_one_bit_is_refused(killed):
    _, _, refused = killed
    assert "whose weights have digest" in refused
