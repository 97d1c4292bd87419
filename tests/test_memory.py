"""Training needs little more memory than inference: in tensor bytes, which repeat exactly."""

import pytest
import torch

from benchmarks.memory import PROMISED_SHARE, LiveTensors, configured, endless, prepared
from germline.spaces import make_space


def peak(space, work, examples=8):
    config = configured(space, members=8, examples=examples, tokens=8)
    searched = make_space(config.space, config.seed) if work != "inference" else None
    engine = endless(config, searched)
    play = prepared(config, engine, work)
    with LiveTensors() as live:
        play()
    return live.peak, sum(one.nbytes for one in engine.serving.values())


@pytest.mark.parametrize("space", ["low_rank", "lora"])
def test_training_needs_at_most_a_tenth_of_the_weights_more_than_inference(space):
    inference, weights = peak(space, "inference")
    training, _ = peak(space, "training")
    assert training <= inference + PROMISED_SHARE[space] * weights


def test_full_needs_one_copy_of_the_weights_more_than_inference():
    # Enough rows that generation, not the optimizer's scratch of 4 MB, is where memory peaks.
    inference, weights = peak("full", "inference", examples=48)
    training, _ = peak("full", "training", examples=48)
    assert training <= inference + PROMISED_SHARE["full"] * weights


def test_live_tensors_counts_what_is_alive_at_once():
    with LiveTensors() as live:
        one = torch.zeros(1000)
        del one
        other = torch.ones(500)
        view = other[10:] + 1
        del view
    assert live.peak == 4000
