"""A run that this machine cannot hold is refused before anything is loaded or started."""

import pytest

from germline import train
from germline.config import load_config
from germline.engines import pretrained
from germline.estimates import machine as machine_module
from germline.run import build_parts, preflight
from germline.run.build_parts import build_run_parts, make_engine
from germline.run.preflight import check_memory
from germline.types import GermlineError
from tests.published_models import published
from tests.tiny import save_tiny

QWEN = published("Qwen/Qwen2.5-0.5B")
CPU = {"kind": "inprocess", "device": "cpu"}


def available(monkeypatch, gigabytes):
    monkeypatch.setattr(machine_module, "available_bytes", lambda: gigabytes * 1e9)


MEMORY = {
    # setting, what is checked -> GB that are needed for the weights
    ("space=lora", "microbatch.rows=64"): 1.98,  # the batch is for a dry run to say
    ("space=full",): 3.95,
    ("space=lora", "fleet.engines=2"): 3.95,
    ("space=lora", "fleet.engines=2", "engine.dtype=bfloat16"): 0.99,  # mapped once from its file
    ("engine={kind: sglang, base_url: http://127.0.0.1:1}",): 1.70,  # without the server's copy
}


@pytest.mark.parametrize(("overrides", "needed"), MEMORY.items())
def test_weights_above_the_memory_are_refused_with_what_would_fit(monkeypatch, overrides, needed):
    config = load_config({"model": QWEN, "engine": CPU}, overrides)
    available(monkeypatch, 1.02 * needed)
    check_memory(config, engines=config.fleet.engines)
    available(monkeypatch, 0.98 * needed)
    with pytest.raises(GermlineError) as caught:
        check_memory(config, engines=config.fleet.engines)
    assert f"model={QWEN} does not fit: {needed:.1f} GB of host memory" in str(caught.value)
    assert "less is needed by engine.dtype=bfloat16" in str(caught.value)


def test_masters_count_only_where_something_is_searched(monkeypatch):
    available(monkeypatch, 3.0)
    config = load_config({"model": QWEN, "space": "full", "engine": CPU})
    with pytest.raises(GermlineError, match="fp32 masters 2"):
        check_memory(config)
    check_memory(config, searched=False)


def test_no_weight_is_loaded_of_a_model_that_is_refused(monkeypatch, tmp_path):
    folder = save_tiny(tmp_path / "m", "qwen2")
    available(monkeypatch, 1e-6)
    monkeypatch.setattr(pretrained, "load_pretrained", pytest.fail)
    with pytest.raises(GermlineError, match="does not fit"):
        make_engine(load_config({"model": str(folder), "engine": CPU}))
    available(monkeypatch, 2.5)
    settings = {"model": QWEN, "space": "lora", "engine": CPU, "fleet": {"engines": 2}}
    with pytest.raises(GermlineError, match=r"4\.0 GB of host memory"):
        build_run_parts(load_config(settings))
    # The loader says what is wrong with a model that cannot be read.
    check_memory(load_config({"model": str(tmp_path), "engine": CPU}))


def test_more_engines_than_this_machine_can_hold_are_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "available_bytes", lambda: 16e9)
    monkeypatch.setattr(build_parts, "make_fleet", pytest.fail)
    settings = {"task": "arithmetic", "batch_size": 4, "engine": "toy", "fleet": {"engines": 500}}
    with pytest.raises(GermlineError, match=r"fleet.engines=500: .* set at most fleet.engines=65;"):
        train(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()
