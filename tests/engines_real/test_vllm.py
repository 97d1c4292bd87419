"""What only a real vLLM shows: its adapter slots, caches and weights."""

import json
import os
import subprocess

import pytest

from tests.engines_real.recordings import ROOT, SHOWN, TIMEOUT_S, interpreter


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
