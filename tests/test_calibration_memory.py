"""The memory of calibrating sigma: few members read at once, and the estimate counts them."""

import numpy as np
import pytest

from benchmarks.memory import LiveTensors
from germline.config import load_config
from germline.engines.inprocess import InProcessEngine
from germline.estimates.memory import memory_parts, total
from germline.estimates.model_shape import shape_of
from germline.estimates.workload import TextLengths, workload
from germline.run.build_parts import make_engine
from germline.tasks import make_task
from germline.types import Completion, SeedPerturbation

NEW = 16
AUTO = {"task": {"kind": "arithmetic", "max_new_tokens": NEW}, "strategy": {"population": 16}}


def test_members_read_in_turn_and_take_the_memory_that_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = load_config(AUTO)
    engine = make_engine(config)
    assert isinstance(engine, InProcessEngine)
    examples = make_task(config.task).examples("train")[:64]
    written = [Completion("", tuple(range(20, 20 + NEW)), "length", 0)] * len(examples)
    members = [None, *(SeedPerturbation(0, 0, d, s, 0.01) for d in range(3) for s in (1, -1))]
    length = engine.pack_completions(examples, [written]).rows.shape[1]
    with LiveTensors() as live:
        in_turn = engine.log_probabilities(members, examples, [written] * len(members))
    monkeypatch.setattr("germline.engines.completion_scorer.TOKENS_AT_ONCE", 10**9)
    with LiveTensors() as together:
        whole = engine.log_probabilities(members, examples, [written] * len(members))
    assert np.allclose(in_turn, whole, rtol=0, atol=3e-5)
    assert live.peak < 0.5 * together.peak

    shape = shape_of("nano")
    work = workload(config, shape, TextLengths(8, length - NEW, 0, NEW), on_gpu=False)
    parts = memory_parts(config, shape, work)
    counted = sum(one.bytes for one in parts if one.phase in ("always", "calibration"))
    counted -= next(one.bytes for one in parts if one.name == "program")
    assert counted == pytest.approx(live.peak, rel=0.25)
    fixed = load_config(AUTO, ["strategy.sigma=0.01"])
    without = memory_parts(fixed, shape, work)
    assert total(without, "host", on_gpu=False) <= total(parts, "host", on_gpu=False)
    assert not [one for one in without if one.phase == "calibration"]
