"""Runs on a simulated SGLang server: stopped when it is lost, resumed with another server."""

import pytest

from germline.config import Sglang, load_config
from germline.record import RunDirectory
from germline.run import evaluate, resume, train
from germline.types import EngineLost, GermlineError
from tests.scripted_server import listening
from tests.simulated_sglang import SimulatedSglang
from tests.tiny_engines import folder


def settings(script):
    return load_config(
        {
            "model": str(folder("qwen2")),
            "task": {"kind": "conciseness", "max_new_tokens": 4},
            "space": "low_rank",
            "engine": {"kind": "sglang", "base_url": script.url, "retry_timeout_s": 0.0},
            "strategy": {"population": 4, "sigma": 0.02},
            "held_out": {"examples": 2},
            "record": {"tensorboard": False, "figure_every": 1000},
            "graders": {"workers": 1},
            "batch_size": 2,
            "generations": 3,
        }
    )


def test_a_run_that_lost_its_server_is_resumed_with_another(tmp_path):
    first, second = SimulatedSglang(), SimulatedSglang()
    with listening(first.reply) as script:
        training = train(settings(script), tmp_path / "run")
        running = iter(training)
        next(running)
        first.instead["/generate"] = (503, "gone")
        with pytest.raises(EngineLost, match="answered 503: gone"):
            next(running)
    assert len(RunDirectory.open(tmp_path / "run").journal.read()) == 1
    with listening(second.reply) as script:
        list(resume(tmp_path / "run", [f"engine.base_url={script.url}"]))
    directory = RunDirectory.open(tmp_path / "run")
    assert len(directory.journal.read()) == 3
    assert isinstance(directory.config.engine, Sglang)
    assert directory.config.engine.base_url == script.url
    assert second.version == "default"  # it got its own weights back


def test_the_serving_dtype_cannot_change_within_a_run(tmp_path):
    with listening(SimulatedSglang().reply) as script:
        list(train(settings(script), tmp_path / "run"))
    with pytest.raises(GermlineError, match=r"engine\.dtype cannot change .*engine\.base_url"):
        resume(tmp_path / "run", ["generations=4", "engine.dtype=float16"])


def test_evaluating_a_run_leaves_its_server_as_it_was(tmp_path):
    simulated = SimulatedSglang()
    with listening(simulated.reply) as script:
        list(train(settings(script), tmp_path / "run"))
        script.asked.clear()
        evaluate(str(tmp_path / "run"), limit=2)
    assert [body["model_path"] for body in script.bodies("/update_weights_from_disk")] == [
        "a/model"
    ]
    assert simulated.version == "default"
