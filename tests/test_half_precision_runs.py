"""Runs served in bf16 and fp16: resumed, exported, loaded again and spread, they stay the same."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from benchmarks.dtypes import logit_bound
from germline.config import Config, InProcess, load_config
from germline.config.config_files import as_yaml
from germline.engines import model_tensors
from germline.engines.inprocess import InProcessEngine
from germline.engines.model_tensors import DTYPES
from germline.estimates import machine
from germline.record import RunDirectory
from germline.run import export, fork, replay, resume, train
from germline.run.build_parts import make_engine
from germline.run.dry_run import dry_run
from germline.run.weights import load_engine, open_source
from germline.spaces.base import CoordinateSpace
from germline.studies.study_file import Study
from germline.types import Decoding, GermlineError
from tests.tiny import save_tiny
from tests.tiny_engines import examples, folder, tokens
from tests.tiny_runs import tiny_run
from tests.toy_runs import SETTINGS, finish, journal, stopped_after

# What peft calls is deprecated by transformers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
    pytest.mark.usefixtures("graded_in_process"),
]

LORA = "{kind: lora, rank: 2, init_scale_b: 0.1}"
RUNS = [
    ("gemma2", "bfloat16", "full"),
    ("qwen3", "bfloat16", "low_rank"),
    ("llama", "bfloat16", LORA),
    ("olmo2", "bfloat16", "{kind: singular, top_k: 4}"),
    ("qwen3_moe", "bfloat16", "{kind: low_rank, unsupported: skip}"),
    ("mistral", "float16", "full"),
    ("gemma3", "float16", "low_rank"),
    ("phi3", "float16", "{kind: subspace, dimension: 12}"),
    ("mixtral", "float16", "{kind: lora, rank: 2, init_scale_b: 0.1, unsupported: skip}"),
]
ADAPTERS = [run for run in RUNS if "lora" in run[2]]
QUICK = [RUNS[2], RUNS[6], RUNS[7]]
"""Both dtypes; an adapter, a low rank and coordinates."""
TEXTS = examples()
NEW = 12


@dataclass(frozen=True)
class Finished:
    """A run of two generations, what it served in, and its merged export."""

    path: Path
    export: Path
    model: Path
    dtype: str

    @property
    def config(self) -> Config:
        return RunDirectory.open(self.path).config


_FINISHED: dict[tuple[str, str, str], Finished] = {}


def config(model, dtype, space, *overrides):
    values: dict[str, Any] = {
        **SETTINGS,
        "model": str(folder(model, dtype)),
        "engine": {"kind": "inprocess", "device": "cpu", "threads": 1, "dtype": dtype},
        "generations": 2,
    }
    return load_config(values, ("strategy.sigma=0.05", f"space={space}", *overrides))


@pytest.fixture
def trained(request, tmp_path_factory):
    """A finished run, made once; tests only read it."""
    if request.param not in _FINISHED:
        model, dtype, _space = request.param
        place = tmp_path_factory.mktemp("run")
        path = finish(train(config(*request.param), place / "run"))
        export(path, place / "model", "merged")
        _FINISHED[request.param] = Finished(path, place / "model", folder(model, dtype), dtype)
    return _FINISHED[request.param]


def every(runs):
    marks = {run: () if run in QUICK else pytest.mark.slow for run in runs}
    cases = [pytest.param(run, marks=mark, id=" ".join(run)) for run, mark in marks.items()]
    return pytest.mark.parametrize("trained", cases, indirect=True)


def loaded(source, dtype, **settings):
    """An engine of the same dtype over a folder, without a space unless one is given."""
    engine = {"kind": "inprocess", "device": "cpu", "threads": 1, "dtype": dtype}
    values = load_config({"model": str(source), "engine": engine, **settings})
    made = make_engine(values, searched="space" in settings)
    assert isinstance(made, InProcessEngine)
    return made


def engine_of(run):
    """An engine with the weights of a run."""
    made = load_engine(RunDirectory.open(run.path))
    assert isinstance(made, InProcessEngine)
    return made


def written(engine):
    return engine.generate([None], TEXTS, Decoding(NEW))


def assert_only_ties_differ(one, other, bound):
    """Compare greedy texts of two engines: they part only where one of them sees a tie."""
    mine, theirs = written(one), written(other)
    (logits,) = one.read([None], TEXTS, mine)
    for left, right, places in zip(tokens(mine)[0], tokens(theirs)[0], logits, strict=True):
        if left != right:
            pairs = enumerate(zip(left, right, strict=False))
            place, pair = next((place, [*pair]) for place, pair in pairs if len({*pair}) > 1)
            first, second = places[place, pair].float()
            assert (first - second).abs() <= bound


@every(QUICK)
def test_a_stopped_run_reaches_the_same_bits(trained, tmp_path):
    path = stopped_after(train(trained.config, tmp_path / "run"), 1)
    finish(resume(path))
    assert journal(path) == journal(trained.path)


@every(RUNS)
def test_an_export_is_the_masters_rounded_once(trained, tmp_path):
    shutil.copytree(trained.path, tmp_path / "run", ignore=shutil.ignore_patterns("snapshots"))
    export(tmp_path / "run", tmp_path / "replayed", "merged")
    digest = RunDirectory.open(trained.path).journal.read()[-1].digest
    assert replay(trained.path, 1) == digest
    files = [place / "model.safetensors" for place in (trained.export, tmp_path / "replayed")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert {one.dtype for one in load_file(files[0]).values()} == {DTYPES[trained.dtype]}
    engine = engine_of(trained)
    plain = AutoModelForCausalLM.from_pretrained(trained.export, dtype="auto")
    frozen = {info.name for info in engine.weights.base.tensors}
    moved = {layer.name for layer in engine.weights.adapted}
    if isinstance(engine.weights.space, CoordinateSpace):
        moved |= {matrix.name for matrix in engine.weights.space.matrices}
    for name, parameter in plain.named_parameters():
        if name in frozen - moved:
            assert torch.equal(parameter, engine.serving[name])


@every(RUNS)
@torch.inference_mode()
def test_an_export_loaded_again_writes_what_the_run_writes(trained):
    mine = engine_of(trained)
    again = loaded(trained.export, trained.dtype)
    if trained.config.space.kind in ("full", "low_rank"):  # the serving copy is the export
        assert written(again) == written(mine)
        return
    ids = torch.arange(30, 60).view(2, 15)
    one, other = mine.logits(None, ids).float(), again.logits(None, ids).float()
    bound = logit_bound(trained.dtype, 3, one)
    assert (one - other).abs().max() <= 2 * bound
    assert_only_ties_differ(mine, again, 4 * bound)


@every(ADAPTERS)
def test_plain_peft_gives_the_logits_of_the_run(trained, tmp_path):
    export(trained.path, tmp_path / "adapter", "adapter")
    engine = engine_of(trained)
    plain = AutoModelForCausalLM.from_pretrained(trained.model, dtype="auto")
    assert plain.dtype == DTYPES[trained.dtype]
    model = PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    ids = torch.arange(30, 60).view(2, 15)
    with torch.no_grad():
        theirs, ours = model(ids).logits.float(), engine.logits(None, ids).float()
        assert (theirs - ours).abs().max() <= 2 * logit_bound(trained.dtype, 3, ours)


# --- the dtype that is faster on this processor


def dtype_of(config):
    assert isinstance(config.engine, InProcess)
    return config.engine.dtype


def begun(tmp_path, *overrides):
    """Train one generation of a tiny model with `engine.dtype=auto`; return the run."""
    settings = tiny_run(save_tiny(tmp_path / "model", "llama"), "generations=1", *overrides)
    return train(settings, tmp_path / "run").run().directory


@pytest.fixture
def fast_bfloat16(monkeypatch):
    monkeypatch.setattr(model_tensors, "multiplies_bfloat16", lambda: True)
    monkeypatch.setattr(machine, "BFLOAT16_FROM", 0)


SEARCH = ("space=low_rank", "strategy={population: 4, sigma: 0.01, learning_rate: 0.1}")


def test_a_run_keeps_the_dtype_that_was_faster_where_it_began(tmp_path, fast_bfloat16, monkeypatch):
    run = begun(tmp_path, *SEARCH)
    assert dtype_of(run.config) == "bfloat16"
    monkeypatch.setattr(model_tensors, "multiplies_bfloat16", lambda: False)  # on another machine
    resumed = resume(run.path, ["generations=2"]).run().directory
    given = run.config.model_copy(update={"generations": 2})
    whole = train(given, tmp_path / "whole").run().directory
    assert dtype_of(resumed.config) == "bfloat16"
    assert journal(resumed.path) == journal(whole.path)
    plan = dry_run(tiny_run(tmp_path / "model"), tmp_path / "dry")
    assert dtype_of(plan.config) == "auto"


def test_a_fork_keeps_the_dtype_of_the_run_that_it_begins_from(tmp_path, fast_bfloat16):
    run = begun(tmp_path, "engine.dtype=float32", *SEARCH)
    file = run.path / "run.json"
    file.write_text(file.read_text().replace('"dtype": "float32"', '"dtype": "auto"'))
    assert dtype_of(RunDirectory.open(run.path).config) == "auto"  # as of a CPU without bfloat16
    assert dtype_of(fork(run.path, 0, out=tmp_path / "fork").config) == "auto"


@pytest.mark.parametrize(
    ("fast", "least", "override", "dtype"),
    [
        (False, 0, "engine.dtype=auto", "auto"),
        (True, 1e9, "engine.dtype=auto", "auto"),
        (True, 0, "engine.dtype=float32", "float32"),
        (True, 0, "method=sft_on_best", "auto"),
    ],
    ids=["slow", "small", "given", "backpropagation"],
)
def test_auto_stays_fp32_on_a_cpu(fast, least, override, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(model_tensors, "multiplies_bfloat16", lambda: fast)
    monkeypatch.setattr(machine, "BFLOAT16_FROM", least)
    config = tiny_run(save_tiny(tmp_path / "model", "llama"), override)
    assert dtype_of(machine.with_dtype(config)) == dtype


def test_a_study_does_not_compare_methods_in_different_dtypes(tmp_path, fast_bfloat16):
    config = tiny_run(save_tiny(tmp_path / "model", "llama"))
    sft = ["method=sft_on_best", "strategy.learning_rate=0.1"]
    (tmp_path / "tiny.yaml").write_text(as_yaml(config.model_dump(mode="json")))
    file = {
        "seeds": 0,
        "tasks": {"short": {"config": "tiny.yaml"}},
        "methods": {"es": {}, "sft": {"settings": sft}},
    }
    (tmp_path / "study.yaml").write_text(as_yaml(file))
    with pytest.raises(GermlineError, match=r"es bfloat16, sft float32.*set engine\.dtype="):
        Study(tmp_path / "study.yaml", out=tmp_path / "out").prepare()
    same = ["settings=[engine.dtype=float32]"]
    Study(tmp_path / "study.yaml", same, tmp_path / "out").prepare()


def test_a_model_is_scored_in_the_dtype_that_a_run_of_it_has(tmp_path, fast_bfloat16):
    model = str(save_tiny(tmp_path / "model", "llama"))
    assert dtype_of(open_source(model, None, [])[1]) == "bfloat16"
    assert dtype_of(open_source(model, None, ["engine.dtype=float32"])[1]) == "float32"


@pytest.mark.parametrize("instruction", ["_is_avx512_bf16_supported", "_is_amx_tile_supported"])
def test_one_kind_of_instruction_is_enough(instruction, monkeypatch):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert not model_tensors.multiplies_bfloat16()
    monkeypatch.setattr(torch.cpu, instruction, lambda: True)
    assert model_tensors.multiplies_bfloat16()
