"""What bf16 and fp16 promise in every space and family: the merged model, within their rounding."""

import pytest
import torch

from benchmarks.dtypes import MODELS, NARROW, SPACES, Logits, compared, measured, merged_logits
from germline.types import Decoding
from tests.tiny_engines import examples, folder, inprocess, population

SOME = tuple(space for space in SPACES if space != "rank 6")
# Each family in each space, and each dtype in half of these; few of the cases are quick.
ALL = {
    (model, NARROW[(number + place) % 2], space): (number + place) % 7 < 1
    for number, model in enumerate(MODELS)
    for place, space in enumerate(SOME)
}
QUICK = {case for case, is_quick in ALL.items() if is_quick}
CASES = [
    *ALL,
    # Above the rank up to which factors are applied column by column.
    *((model, dtype, "rank 6") for model in ("qwen3", "mixtral") for dtype in NARROW),
]
AS_NEAR_AS_TRANSFORMERS = 1.25
"""Of the error of plain transformers, which rounds merged weights and not the factors beside."""


@pytest.fixture(
    params=[
        pytest.param(case, marks=() if case in QUICK else pytest.mark.slow, id=" ".join(case))
        for case in CASES
    ]
)
def result(request):
    return measured(*request.param)


def test_members_are_the_merged_model_within_the_rounding_of_the_dtype(result):
    assert result.error <= result.rms_bound
    assert result.of_bound <= 1
    assert result.worst_kl <= result.kl_bound
    assert 0 < result.mean_kl < result.kl_bound / 10
    assert result.error <= AS_NEAR_AS_TRANSFORMERS * result.transformers
    # Greedy tokens differ at ties within the rounding only.
    assert result.tokens > 100
    assert result.gap <= 1
    assert result.leaves_no_trace


@pytest.mark.parametrize("dtype", NARROW)
@torch.inference_mode()
def test_a_perturbation_that_is_lost_breaks_every_bound(dtype):
    engine = inprocess(str(folder("qwen3", dtype)), SPACES["rank 1"], dtype=dtype)
    member = population(2).seed_perturbations()[0]
    written = engine.generate([member], examples(), Decoding(8))
    lost = torch.cat(engine.read([None], examples(), written)[0]).float()
    exact = merged_logits(engine, SPACES["rank 1"], member, written[0], torch.float32)
    chosen = torch.tensor([token for one in written[0] for token in one.tokens])
    found = compared(Logits(lost, exact, exact), chosen, dtype, 3, leaves_no_trace=True)
    assert found.error > 2 * found.rms_bound
    assert found.of_bound > 2
