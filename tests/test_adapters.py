"""LoRA adapters: where they start, what of them moves, and what plain `peft` makes of them."""

import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from germline import noise
from germline.config import Lora, load_config
from germline.record import RunDirectory
from germline.run import export, replay, train
from germline.spaces.base import BaseModel
from germline.spaces.peft_files import write_adapter
from germline.types import Decoding, GermlineError, TensorInfo, Update
from tests.refusals import refusal
from tests.tiny import save_tiny
from tests.tiny_engines import bits, examples, folder, inprocess, population, same_bits, tokens
from tests.toy_runs import finish, run

IDS = torch.arange(30, 60).view(2, 15)
UPDATE = Update(3, 0, 0.02, 0.1, (0.5, -1.0, 0.25))
RANDOM = Lora(rank=2, alpha=3, init_scale_b=0.5)
MODULES = {"gpt2": ["c_attn", "c_proj"], "llama": ["q_proj", "v_proj", "down_proj"]}


def plain(model):
    return AutoModelForCausalLM.from_pretrained(folder(model), dtype=torch.float32).eval()


def with_adapter(model, path):
    return PeftModel.from_pretrained(plain(model), path).eval()


def by_peft(path, model="llama", **settings):
    """Write a random adapter with plain `peft`."""
    values = {"r": 4, "lora_alpha": 6, "target_modules": MODULES[model], **settings}
    with warnings.catch_warnings():
        # peft says that it corrects fan_in_fan_out where a layer is a Conv1D.
        warnings.simplefilter("ignore", UserWarning)
        wrapped = get_peft_model(plain(model), LoraConfig(task_type="CAUSAL_LM", **values))
    generator = torch.Generator().manual_seed(0)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.1, generator=generator)
    wrapped.save_pretrained(path)
    return wrapped.eval()


def started(path, model="llama", **settings):
    return inprocess(model, Lora(**{"rank": 4, "alpha": 6, "init_adapter": str(path), **settings}))


# --- where it starts


def test_the_starting_adapter_is_drawn_from_the_run_seed_by_name():
    weights = inprocess("gpt2", Lora(rank=2, init_scale_b=0.5)).weights
    layer = next(info for info in weights.adapted if info.shape == (64, 192))  # [in, out]
    a, b = layer.adapter_names
    assert a == "transformer.h.0.attn.c_attn.lora_A.weight"
    drawn = noise.weight_noise(0, 0, 0, f"{a}/start", 2 * 64).reshape(2, 64)
    assert np.array_equal(weights.tensors[a].numpy(), drawn / np.float32(8))
    scaled = inprocess("gpt2", Lora(rank=2, init_scale_a=0.5)).weights
    assert np.array_equal(scaled.tensors[a].numpy(), drawn / np.float32(2))
    drawn = noise.weight_noise(0, 0, 0, f"{b}/start", 192 * 2).reshape(192, 2) * np.float32(0.5)
    assert np.array_equal(weights.tensors[b].numpy(), drawn)
    other = inprocess("gpt2", Lora(rank=2, init_scale_b=0.5), run_seed=1).weights
    assert other.digest() != weights.digest()


def test_an_adapter_with_b_of_zero_starts_from_the_base_model():
    engine = inprocess("llama", Lora(init_scale_b=0))
    with torch.no_grad():
        assert torch.equal(engine.logits(None, IDS), plain("llama")(IDS).logits)


def test_theta_is_the_adapter_and_nothing_else():
    engine = inprocess("llama", RANDOM)
    before = bits(engine)
    engine.apply(UPDATE)
    moved = {name for name, tensor in bits(engine).items() if not torch.equal(tensor, before[name])}
    assert moved == {name for layer in engine.weights.adapted for name in layer.adapter_names}
    assert moved == set(engine.weights.state())
    assert len(moved) == 2 * 7 * 3


def test_a_frozen_a_never_moves_in_members_or_updates():
    engine = inprocess("llama", RANDOM.model_copy(update={"freeze_a": True}))
    assert all("lora_B" in name for name in engine.weights.state())
    member = population(2, sigma=0.1).members[0]
    found = engine.logits(member, IDS)
    for layer in engine.weights.adapted:
        b = layer.adapter_names[1]
        drawn = noise.weight_noise(3, 0, 0, b, engine.weights.tensors[b].numel())
        engine.weights.tensors[b] += 0.1 * torch.from_numpy(drawn).view(-1, 2)
    torch.testing.assert_close(engine.logits(None, IDS), found, rtol=1e-4, atol=1e-4)


def test_the_unit_of_an_adapter_is_that_of_the_layer_beside_it_so_a_b_of_zero_can_move():
    weights = inprocess("llama", Lora(init_scale_b=0), sigma_unit="mean_abs").weights
    for layer in weights.adapted:
        expected = pytest.approx(float(weights.tensors[layer.name].double().abs().mean()), rel=1e-9)
        assert [weights.units[name] for name in layer.adapter_names] == [expected, expected]


# --- adapters written by peft


@pytest.fixture(scope="module")
def random(tmp_path_factory):
    """A random adapter of llama."""
    folder = tmp_path_factory.mktemp("adapter")
    by_peft(folder)
    return folder


@pytest.mark.parametrize("model", MODULES)
def test_an_adapter_of_peft_is_where_a_run_starts(model, tmp_path):
    wrapped = by_peft(tmp_path, model)
    engine = started(tmp_path, model)
    last = {layer.name.split(".")[-2] for layer in engine.weights.adapted}
    assert last == set(MODULES[model])
    with torch.no_grad():
        expected = wrapped(IDS).logits
    torch.testing.assert_close(engine.logits(None, IDS), expected, rtol=1e-4, atol=1e-4)


def test_layers_a_given_adapter_has_but_nobody_selects_stand_still(tmp_path):
    wrapped = by_peft(tmp_path)
    engine = started(tmp_path, include=("*.v_proj.*",))
    with torch.no_grad():
        torch.testing.assert_close(
            engine.logits(None, IDS), wrapped(IDS).logits, rtol=1e-4, atol=1e-4
        )
    assert {name.split(".")[4] for name in engine.weights.state()} == {"v_proj"}
    assert engine.generate(population(2).members, examples(), Decoding(3))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"include": ("*.k_proj.*",)}, "include=['*.k_proj.*']"),
        ({"rank": 1}, "set space.rank=4 and space.alpha=6"),
        ({"alpha": 4}, "set space.rank=4 and space.alpha=6"),
    ],
)
def test_settings_that_the_given_adapter_does_not_have_are_refused(settings, said, random):
    assert said in refusal(started, random, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"use_dora": True},
        {"use_rslora": True},
        {"bias": "lora_only"},
        {"rank_pattern": {"q_proj": 2}},
        {"modules_to_save": ["norm"]},
        {"target_parameters": ["mlp.gate_proj.weight", "mlp.experts.gate_up_proj"]},
    ],
)
def test_an_adapter_that_is_more_than_lora_is_refused_by_what_it_has(settings, tmp_path, random):
    shutil.copytree(random, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    ((name, value),) = settings.items()
    assert f"{name}={value!r}" in refusal(started, tmp_path)


# --- adapters of another base model


def other_llama(path, **settings):
    return str(save_tiny(path / "llama", "llama", **{"tie_word_embeddings": False, **settings}))


def test_an_adapter_of_other_weights_is_refused_by_their_digest(tmp_path):
    inprocess("llama", RANDOM).save_adapter(tmp_path / "adapter")
    other = other_llama(tmp_path, seed=1, attention_bias=True, mlp_bias=True)
    message = refusal(started, tmp_path / "adapter", other, rank=2, alpha=3)
    assert "of another base model" in message
    assert "with weights of digest" in message


def test_the_same_weights_in_another_folder_are_the_same_base_model(tmp_path):
    inprocess("llama", RANDOM).save_adapter(tmp_path / "adapter")
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in folder("llama").iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    assert started(tmp_path / "adapter", str(moved), rank=2, alpha=3)


def test_an_adapter_of_peft_for_a_model_of_another_name_is_refused(random):
    assert f"base_model_name_or_path is {str(folder('llama'))!r}" in refusal(
        started, random, "qwen2"
    )


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"intermediate_size": 80}, ("down_proj.lora_A.weight has shape [4, 96]", "[4, 80]")),
        ({"num_hidden_layers": 2}, ("model.layers.2.mlp.down_proj.lora_A.weight",)),
    ],
)
def test_an_adapter_of_other_layers_is_refused_by_the_first(settings, words, tmp_path, random):
    message = refusal(started, random, other_llama(tmp_path, **settings))
    assert all(word in message for word in words)


# --- folders that are no adapters


def cut(folder):
    (folder / "adapter_model.safetensors").write_bytes(b"")


def halve(folder):
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors.popitem()
    save_file(tensors, folder / "adapter_model.safetensors")


def replace_config(text):
    return lambda folder: (folder / "adapter_config.json").write_text(text)


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (shutil.rmtree, "FileNotFoundError"),
        (lambda folder: (folder / "adapter_config.json").unlink(), "FileNotFoundError"),
        (lambda folder: (folder / "adapter_model.safetensors").unlink(), "FileNotFoundError"),
        (cut, "SafetensorError"),
        (halve, "lora_"),
        *((replace_config(text), "Error") for text in ("", "[1]", '{"peft_type": "LORA"}')),
    ],
)
def test_a_folder_that_is_no_adapter_is_refused(damage, word, tmp_path, random):
    damage(shutil.copytree(random, tmp_path / "given"))
    message = refusal(started, tmp_path / "given")
    assert message.startswith("space.init_adapter: ")
    assert f"{tmp_path}/given" in message
    assert word in message


# --- what is written


def test_an_adapter_is_written_to_the_same_bytes_every_time(tmp_path):
    engine = inprocess("llama", RANDOM)
    written = set()
    for place in map(str, range(12)):  # the library's own order is another one half of the time
        engine.save_adapter(tmp_path / place)
        written.add((tmp_path / place / "adapter_model.safetensors").read_bytes())
    assert len(written) == 1


@pytest.mark.parametrize(
    ("section", "targets", "layers"),
    [
        (
            Lora(),
            ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
            None,
        ),
        (Lora(include=("*.q_proj.*", "*.v_proj.*"), layers="0,2"), ["q_proj", "v_proj"], [0, 2]),
        (
            Lora(include=("*.0.*.q_proj.*", "*.1.*.v_proj.*")),
            ["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.v_proj"],
            None,
        ),
    ],
)
def test_modules_are_named_as_shortly_as_they_can_be(section, targets, layers, tmp_path):
    engine = inprocess("llama", section)
    engine.save_adapter(tmp_path)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert settings["target_modules"] == targets
    assert settings["layers_to_transform"] == layers
    stored = load_file(tmp_path / "adapter_model.safetensors")
    loaded = with_adapter("llama", tmp_path).state_dict()
    inside = {name.replace(".default", ""): tensor for name, tensor in loaded.items()}
    assert {name for name in inside if "lora_" in name} == set(stored)
    assert all(torch.equal(inside[name], tensor) for name, tensor in stored.items())


def test_layers_of_images_that_are_called_alike_are_left_alone(tmp_path):
    layer = TensorInfo("model.language_model.layers.0.self_attn.q_proj.weight", (4, 4), "linear", 0)
    image = TensorInfo("model.vision.layers.0.self_attn.q_proj.weight", (4, 4), "non_text", None)
    base = BaseModel("base", (layer, image), lambda: "digest")
    a, b = layer.adapter_names
    factors = {a: torch.zeros(1, 4), b: torch.zeros(4, 1)}
    write_adapter(tmp_path, factors, [layer], scale=1.0, base=base)
    settings = json.loads((tmp_path / "adapter_config.json").read_text())
    assert settings["target_modules"] == [layer.name.removesuffix(".weight")]


def test_what_was_written_is_where_another_run_starts(tmp_path):
    first = inprocess("llama", RANDOM)
    first.apply(UPDATE)
    first.save_adapter(tmp_path)
    second = started(tmp_path, rank=2, alpha=3)
    assert second.weights.digest() == first.weights.digest()
    assert same_bits(bits(second), bits(first))
    members = population().members
    assert tokens(second.generate(members, examples(), Decoding(4))) == tokens(
        first.generate(members, examples(), Decoding(4))
    )


# What peft calls is deprecated by transformers.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing.:FutureWarning"),
    pytest.mark.usefixtures("graded_in_process"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run from a random adapter of its own."""
    overrides = ("model=" + str(folder("llama")), "engine={kind: inprocess, threads: 1}")
    space = "space={kind: lora, rank: 2, init_scale_b: 0.3, layers: 0-1}"
    folder_of_run = tmp_path_factory.mktemp("run") / "run"
    return run(folder_of_run, *overrides, space, "strategy.sigma=0.1", "seed=5")


def test_snapshots_hold_the_adapter_alone(trained):
    stored = load_file(RunDirectory.open(trained).snapshots / "generation-000003.safetensors")
    assert len(stored) == 2 * 7 * 2
    assert all("lora_" in name for name in stored)


def test_a_run_that_starts_from_an_adapter_needs_that_adapter(trained, tmp_path, monkeypatch):
    export(trained, tmp_path / "adapter")
    monkeypatch.chdir(tmp_path)
    space = "space={kind: lora, rank: 2, init_adapter: adapter, layers: 0-1}"
    config = RunDirectory.open(trained).config
    second = finish(
        train(load_config(config.model_dump(exclude={"space"}), [space]), tmp_path / "second")
    )
    monkeypatch.chdir("/")  # the folder is recorded as an absolute path
    replay(second, 3)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    with safe_open(file, "pt") as stored:
        metadata = stored.metadata()
    save_file({n: t + 1e-6 for n, t in load_file(file).items()}, file, metadata)
    with pytest.raises(GermlineError, match=r"not the one this run began .*space\.init_adapter"):
        replay(second, 3)


def test_the_toy_engine_trains_adapters_that_a_run_can_start_from(tmp_path):
    first = run(tmp_path / "first", "space={kind: lora, rank: 2}")
    export(first, tmp_path / "adapter")
    space = f"space={{kind: lora, rank: 2, init_adapter: {tmp_path / 'adapter'}}}"
    second = RunDirectory.open(run(tmp_path / "second", space))
    assert second.held_out()[0].score.mean == RunDirectory.open(first).held_out()[-1].score.mean


def test_runs_of_other_spaces_have_no_adapter_to_write(tmp_path):
    other = run(tmp_path / "run", "generations=1")
    with pytest.raises(GermlineError, match=r"space\.kind=low_rank"):
        export(other, tmp_path / "out", "adapter")
    assert not (tmp_path / "out").exists()
