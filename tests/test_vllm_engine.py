"""The engine vllm with a simulated vLLM: what it asks for, and in which order.

tests/engines_real tests with a real vLLM that members are evaluated correctly.
"""

from dataclasses import replace

import pytest

from germline.types import Decoding, Example, GermlineError, SeedPerturbation, Update
from tests.simulated_vllm import SimulatedLlm, opened
from tests.tiny_engines import folder

MEMBERS = [SeedPerturbation(7, 0, of, sign, 0.02) for of in (0, 1) for sign in (1, -1)]
EXAMPLES = [Example(k, f"What is {k} + 4?", "", chat=True) for k in range(3)]
GREEDY = Decoding(max_new_tokens=4)
UPDATE = Update(7, 0, 0.02, 0.5, (0.3, -0.2))


@pytest.fixture
def simulated():
    return SimulatedLlm()


def names(simulated):
    return list(dict.fromkeys(request.adapter for request in simulated.requests))


def test_members_are_evaluated_as_named_adapters(simulated):
    with opened(simulated) as engine:
        engine.generate([*MEMBERS, None], EXAMPLES, GREEDY)
        assert [simulated.members[name] for name in names(simulated)] == [*MEMBERS, None]
    assert len(simulated.requests) == (len(MEMBERS) + 1) * len(EXAMPLES)


def test_adapter_names_are_reused_until_an_update_and_new_after_it(simulated):
    with opened(simulated) as engine:
        engine.generate(MEMBERS, EXAMPLES, GREEDY)
        engine.generate(MEMBERS, EXAMPLES, GREEDY)
        before = names(simulated)
        assert len(before) == len(MEMBERS)
        engine.apply(UPDATE)
        engine.generate(MEMBERS, EXAMPLES, GREEDY)
    assert len(names(simulated)) == 2 * len(MEMBERS)


@pytest.mark.parametrize(("space", "times"), [("full", 3), ("low_rank", 1)])
def test_the_prefix_cache_is_emptied_when_weights_change(simulated, space, times):
    with opened(simulated, space) as engine:
        before = simulated.emptied
        engine.generate(MEMBERS[:1], EXAMPLES, GREEDY)
        engine.apply(UPDATE)
    # In `full` for the member's weights, for the center's after them, and for the new center's.
    assert simulated.emptied - before == times


def test_a_dense_member_is_written_for_its_evaluation_and_the_center_after_it(simulated):
    with opened(simulated, "full") as engine:
        engine.generate(MEMBERS[:2], EXAMPLES, GREEDY)
    assert simulated.written == [None, MEMBERS[0], None, MEMBERS[1], None]


def test_the_center_is_written_again_after_a_failed_evaluation(simulated):
    with opened(simulated, "full") as engine:
        simulated.failure = GermlineError("too long")
        with pytest.raises(GermlineError, match="too long"):
            engine.generate(MEMBERS[:1], EXAMPLES, GREEDY)
    assert simulated.written[-1] is None


def test_sampling_seeds_differ_between_prompts_and_are_shared_by_members(simulated):
    with opened(simulated) as engine:
        engine.generate(MEMBERS, EXAMPLES, replace(GREEDY, temperature=0.7))
    seeds: dict[str | None, list[int]] = {}
    for request in simulated.requests:
        seeds.setdefault(request.adapter, []).append(request.seed)
    (common,) = {tuple(one) for one in seeds.values()}
    assert len(set(common)) == len(EXAMPLES)


def test_log_probabilities_are_those_of_the_tokens_after_the_prompt(simulated):
    with opened(simulated) as engine:
        written = engine.generate(MEMBERS, EXAMPLES, GREEDY)
        (scores, *_) = engine.log_probabilities(MEMBERS, EXAMPLES, written)
        prompt = len(engine.encoder.encode(EXAMPLES[0]))
    assert scores[0] == [-prompt, -prompt - 1]


# --- workers in other processes


def test_worker_masters_apply_the_same_updates(simulated):
    with opened(simulated, tensor_parallel=2) as engine:
        engine.apply(UPDATE)
        assert simulated.masters.digest() == engine.weights.digest()
    assert "receive" not in simulated.calls


def test_masters_of_a_snapshot_are_sent_to_the_workers(simulated):
    with opened(simulated, tensor_parallel=2) as engine:
        state = {name: one * 0.5 for name, one in engine.weights.state().items()}
        engine.weights.load_state(state)
        engine.refresh()
        assert simulated.received.keys() == state.keys()
        assert simulated.masters.digest() == engine.weights.digest()


def test_worker_masters_that_differ_after_an_update_are_replaced(simulated, caplog):
    with opened(simulated, tensor_parallel=2) as engine:
        name = engine.weights.searched[0].name
        simulated.masters.tensors[name].view(-1)[0] += 1e-6
        engine.apply(UPDATE)
        assert simulated.masters.digest() == engine.weights.digest()
    assert "differ in their last bits" in caplog.text


def test_workers_that_loaded_another_model_are_refused():
    other = SimulatedLlm(str(folder("llama")))
    with pytest.raises(GermlineError, match=r"engine\.options"), opened(other, tensor_parallel=2):
        pass
