"""The weights of runs, folders, adapters and loaded models, as `germline analyze` reads them."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import germline
from germline.analysis import analyze, open_weights
from germline.analysis.weights import common_start
from germline.nano import NANO_DIR
from germline.record import RunDirectory
from germline.run.weights import load_engine, load_single_model
from tests.refusals import refusal
from tests.tiny import save_tiny
from tests.toy_runs import finish, run

pytestmark = pytest.mark.usefixtures("graded_in_process")

NANO: dict[str, Any] = {
    "model": "nano",
    "task": {"kind": "conciseness", "max_new_tokens": 8, "temperature": 1.0},
    "generations": 3,
    "strategy": {"population": 4, "sigma": 0.01, "learning_rate": 0.01},
    "batch_size": 2,
    "held_out": {"examples": 2},
    "record": {"snapshot_every": 2, "tensorboard": False},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return {
        family: save_tiny(tmp_path_factory.mktemp(family), family) for family in ("llama", "gpt2")
    }


@pytest.fixture(scope="module", params=["full", "low_rank", "lora"])
def trained(request, tmp_path_factory):
    """A run of a space without its snapshots, and the space."""
    sigma = {"strategy": NANO["strategy"] | {"sigma": 1.0 if request.param == "lora" else 0.05}}
    folder = tmp_path_factory.mktemp("run") / "run"
    path = finish(germline.train({**NANO, "space": request.param, **sigma}, folder))
    shutil.rmtree(path / "snapshots")
    return path, request.param


@pytest.mark.parametrize("generation", [None, 0, -1])
def test_a_run_has_the_weights_that_its_engine_rebuilds(trained, generation, tmp_path):
    path, space = trained
    weights: Any = open_weights(path, generation, folder=tmp_path)
    engine: Any = load_engine(RunDirectory.open(path), generation=generation)
    expected = engine.weights.merged_tensors()
    assert set(weights.shapes) == set(expected)
    assert all(torch.equal(weights.read(name), expected[name]) for name in expected)
    nano = load_file(NANO_DIR / "model.safetensors")
    start = weights.start
    is_nano = all(torch.equal(start.read(name), nano[name]) for name in nano)
    assert generation == -1 or weights.digest != start.digest
    assert is_nano == (space != "lora")  # a random adapter is part of the start
    assert all(torch.equal(weights.base.read(name), nano[name]) for name in nano)


def test_a_run_is_compared_with_its_fork(trained, tmp_path):
    path, _ = trained
    fork = finish(germline.fork(path, 0, ["generations=1"], tmp_path / "fork"))
    opened: list[Any] = [open_weights(one, folder=tmp_path) for one in (path, fork)]
    assert opened[1].start.digest == open_weights(path, 0, folder=tmp_path).digest
    assert opened[1].base is opened[1].start
    assert common_start(opened).digest == opened[0].base.digest
    (pair,) = analyze("cosine", [path, fork]).values["pairs"]
    assert pair["pair"] == ["run", "fork"]


def test_a_vote_has_its_best_member_and_began_without_it(tmp_path, monkeypatch):
    vote = {"method": {"kind": "randopt", "ensemble_size": 2}, "generations": 1}
    strategy = {"population": 4, "sigma": 0.5}
    config = {**NANO, **vote, "space": "lora", "strategy": strategy}
    path = finish(germline.train(config, tmp_path / "run"))
    weights: Any = open_weights(path, folder=tmp_path)
    directory = RunDirectory.open(path)
    best, first = (load(directory).weights for load in (load_single_model, load_engine))
    known: list[Any] = [(weights, best), (weights.start, first)]
    for found, masters in known:
        expected = masters.merged_tensors()
        assert all(torch.equal(found.read(name), expected[name]) for name in found.shapes)
    assert weights.digest != weights.start.digest
    assert "leave the generation out" in refusal(open_weights, path, 0, folder=tmp_path)

    def interrupted(_engine: object, folder: Path, _form: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").touch()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("germline.run.weights._write_weights", interrupted)
        with pytest.raises(KeyboardInterrupt):
            analyze("deltas", [path], out=tmp_path / "out", emit="mergekit")
    analyze("deltas", [path], out=tmp_path / "out", emit="mergekit")
    (folder,) = (tmp_path / "out" / "models").iterdir()
    exported = open_weights(folder, folder=tmp_path)
    assert all(torch.equal(exported.read(name), weights.read(name)) for name in exported.shapes)


def test_shards_and_pieces_make_the_same_tensors(tiny, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny["llama"], dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    assert len([*(tmp_path / "shards").glob("*.safetensors")]) > 2
    weights, loaded = (open_weights(s, folder=tmp_path) for s in (tmp_path / "shards", model))
    for name in weights.shapes:
        pieces = [weights.read(name, at, at + 2) for at in range(0, weights.shapes[name][0], 2)]
        assert torch.equal(torch.cat(pieces), loaded.read(name))
    assert set(weights.shapes) == set(loaded.shapes)
    assert weights.digest == loaded.digest


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_an_adapter_is_merged_as_peft_merges_it(family, tiny, tmp_path):
    layers = {"gpt2": ["c_attn", "c_proj"], "llama": ["q_proj", "o_proj", "down_proj"]}[family]
    model = AutoModelForCausalLM.from_pretrained(tiny[family])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft corrects fan_in_fan_out
        wrapped = get_peft_model(model, LoraConfig(r=4, lora_alpha=6, target_modules=layers))
        generator = torch.Generator().manual_seed(0)
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0, 0.1, generator=generator)
        wrapped.save_pretrained(tmp_path / "adapter")
        merged = dict(wrapped.merge_and_unload().named_parameters())
    weights: Any = open_weights(tmp_path / "adapter", folder=tmp_path)
    for name in weights.shapes:
        torch.testing.assert_close(weights.read(name), merged[name].detach(), rtol=0, atol=1e-5)
    assert weights.start.digest == open_weights(tiny[family], folder=tmp_path).digest
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(config.read_text().replace(str(tiny[family]), "/nowhere/model"))
    said = refusal(open_weights, config.parent, folder=tmp_path)
    assert f"the base model of {config.parent} cannot be opened: /nowhere/model" in said


def test_quantized_folders_are_refused(tiny, tmp_path):
    folder = shutil.copytree(tiny["llama"], tmp_path / "int8")
    tensors = load_file(folder / "model.safetensors")
    first = next(name for name in tensors if name.endswith("q_proj.weight"))
    tensors[first] = torch.zeros(64, 64, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")
    assert "is quantized" in refusal(open_weights, folder, folder=tmp_path)
    folder = shutil.copytree(tiny["llama"], tmp_path / "declared")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (folder / "config.json").write_text(json.dumps(config))
    assert "is quantized" in refusal(open_weights, folder, folder=tmp_path)
    (folder / "model.safetensors").write_bytes(b"torn")
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": None}))
    assert "cannot be loaded (SafetensorError" in refusal(open_weights, folder, folder=tmp_path)


def test_other_starts_are_refused_with_their_digests(tiny, tmp_path):
    other = save_tiny(tmp_path / "other", "llama", seed=1)
    found: list[Any] = []
    for start in (tiny["llama"], other):
        one = open_weights(tiny["llama"], folder=tmp_path)
        one.start = one.base = open_weights(start, folder=tmp_path)
        found.append(one)
    said = refusal(common_start, found)
    assert all(one.base.digest[:16] in said for one in found)
    copy = shutil.copytree(tiny["llama"], tmp_path / "copy")
    found[1].base = open_weights(copy, folder=tmp_path)
    common_start(found)


def test_the_start_of_a_run_from_an_adapter_has_the_adapter(tmp_path):
    space = {"kind": "lora", "rank": 1}
    path = finish(germline.train({**NANO, "space": space}, tmp_path / "a" / "run"))
    germline.export(path, tmp_path / "adapter", "adapter")
    space["init_adapter"] = str(tmp_path / "adapter")
    again = finish(germline.train({**NANO, "space": space}, tmp_path / "b" / "run"))
    runs: list[Any] = [open_weights(one, folder=tmp_path) for one in (path, again)]
    first, second = runs
    assert second.base is second.start
    name = next(name for name in first.shapes if name.endswith("up_proj.weight"))
    torch.testing.assert_close(second.base.read(name), first.read(name))
    assert common_start([first, second]).digest == first.base.digest != second.start.digest
    for one in (path, again):  # two runs of one name, without signal: their charts are empty
        result = analyze("deltas", [one], out=tmp_path / "out", emit="mergekit")
        assert not result.rows
    exported = [one.name.rpartition("-")[0] for one in (tmp_path / "out" / "models").iterdir()]
    assert sorted(exported) == ["a-run@2", "b-run@-1", "b-run@2"]


def test_a_folder_needs_a_start_of_the_same_shapes(tiny, tmp_path):
    assert "(out)" in refusal(analyze, "deltas", [tiny["llama"]], emit="mergekit")
    assert "--start" in refusal(analyze, "deltas", [tiny["llama"]])
    wide = save_tiny(tmp_path / "wide", "llama", intermediate_size=64)
    assert "[64, 64] in wide" in refusal(analyze, "deltas", [wide], start=tiny["llama"])
    tied = shutil.copytree(tiny["llama"], tmp_path / "tied")
    tensors = load_file(tied / "model.safetensors")
    save_file(tensors | {"extra.weight": torch.ones(4)}, tied / "model.safetensors")
    found = analyze("deltas", [tied], start=tiny["llama"]).values["tensors"]["tied"]
    assert [*found] == sorted(tensors)  # the start has no such tensor, so no change of it
    said = refusal(analyze, "deltas", [tiny["gpt2"]], start=tiny["llama"])
    assert "no tensor is in all of" in said
    assert "not a run directory" in refusal(analyze, "deltas", [tiny["llama"]], generations=[3])


def test_a_setting_that_may_be_meant_is_named():
    assert "did you mean 'limit'" in refusal(analyze, "modes", ["nano"], settings={"limiit": "4"})


def test_a_journal_that_ends_early_has_the_generations_before(tmp_path):
    path = run(tmp_path / "run", "space=full")
    lines = (path / "journal.jsonl").read_bytes().splitlines(keepends=True)
    (path / "journal.jsonl").write_bytes(b"".join(lines[:1]))
    assert "journal" in refusal(open_weights, path, folder=tmp_path)
    assert len(open_weights(path, 0, folder=tmp_path).entries) == 1
    assert "the journal lines of generations 1" in refusal(open_weights, path, 2, folder=tmp_path)
