"""Training needs little more memory than inference: in tensor bytes, which repeat exactly."""

import tracemalloc
from copy import deepcopy

import pytest
import torch

from benchmarks.memory import PROMISED_SHARE, LiveTensors, configured, peak
from germline.checkpoint import restore, save_snapshot
from germline.config import Full, LowRank
from germline.engines.master_weights import Masters
from germline.optimizers import Adam, Sgd
from germline.record import JournalEntry
from germline.spaces import make_space
from germline.types import TensorInfo, Update


@pytest.mark.parametrize(
    ("space", "examples"),
    [
        ("low_rank", 8),
        pytest.param("lora", 8, marks=pytest.mark.slow),
        # So many rows that generating, not the optimizer's scratch of 4 MB, has the peak.
        pytest.param("full", 96, marks=pytest.mark.slow),
    ],
)
def test_training_needs_at_most_the_promised_share_more_than_inference(space, examples):
    config = configured(space, members=8, examples=examples, tokens=8)
    inference, weights = peak(config, "inference")
    training, _ = peak(config, "training")
    assert training <= inference + PROMISED_SHARE[space] * weights


BIG = [TensorInfo(f"layers.{n}.up.weight", (2048, 1024), "linear", n) for n in range(3)]
"""Three tensors of 8 MB."""


@pytest.mark.parametrize("section", [Full(), LowRank(), LowRank(rank=2)])
def test_an_update_needs_one_tensor_beside_the_weights_however_many_members(section):
    tensors = {info.name: torch.zeros(info.shape) for info in BIG}
    masters = Masters(tensors, BIG, make_space(section), Sgd(), "constant")
    update = Update(0, 0, 0.1, 1.0, tuple(0.1 * k + 0.1 for k in range(8)))
    tracemalloc.start()
    with LiveTensors() as live:
        for tensor in tensors.values():
            tensor.detach()  # seen before there is anything else
        weights = live.peak
        masters.apply(update)
    arrays = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    one, scratch = 2**23, 2**22  # that of the optimizer
    assert weights == 3 * one
    assert live.peak - weights <= one + scratch + 2**20
    # numpy's: the sum itself, whose memory the tensor shares, and a piece per thread.
    assert arrays <= one + 2**21 * torch.get_num_threads()


@pytest.mark.parametrize("optimizer", [Adam(), Sgd(momentum=0.9)])
def test_a_snapshot_is_loaded_without_a_second_copy_of_masters_or_moments(optimizer, tmp_path):
    infos = [TensorInfo(f"layers.{n}.up.weight", (1024, 1024), "linear", n) for n in range(8)]

    def weights():
        tensors = {info.name: torch.zeros(info.shape) for info in infos}
        return Masters(tensors, infos, make_space(LowRank()), deepcopy(optimizer), "constant")

    trained, base = weights(), weights().digest()
    update = Update(0, 0, 0.1, 1.0, (0.3, -0.2))
    trained.apply(update)
    entries = [JournalEntry(update, trained.digest())]
    save_snapshot(trained, tmp_path, 0)
    resumed = weights()
    with LiveTensors() as live:
        for tensor in resumed.tensors.values():
            tensor.detach()  # seen before there is anything else
        assert restore(resumed, entries, tmp_path, base, 0) == entries[0].digest
    one = 2**22
    state = sum(tensor.nbytes for tensor in resumed.state().values())
    assert state == 8 * one * (3 if isinstance(optimizer, Adam) else 2)
    # Digests read a tensor in each thread.
    assert live.peak <= state + (max(2, torch.get_num_threads()) + 1) * one
    assert resumed.state().keys() == trained.state().keys()
