"""What a run needs, against what loading and generating then take: bytes are counted exactly."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.memory import LiveTensors
from germline.config import load_config
from germline.config.config_files import preset_configs
from germline.engines.decode import PREFILL_BYTES
from germline.engines.inprocess import InProcessEngine
from germline.engines.prompt_batch import encode_prompt, pad_prompts
from germline.estimates import machine
from germline.estimates.machine import Machine, available_bytes, machine_here, total_bytes
from germline.estimates.memory import estimate, memory_parts, prefill_tokens, total
from germline.estimates.sizes import TextLengths, shape_of, text_lengths, workload
from germline.methods.policy_gradient import TextRow, summed_gradients, token_outputs
from germline.run.build_parts import make_engine
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import Completion, Decoding, Example, SeedPerturbation, Update
from tests.published_models import published
from tests.slow_cases import mostly_slow
from tests.tiny import save_tiny

TEXTS = TextLengths(examples=8, prompt=20, prefix=4, new_tokens=16)
QWEN = published("Qwen/Qwen2.5-0.5B")
CPU = {"kind": "inprocess", "device": "cpu"}


def work_of(settings, source=QWEN, texts=TEXTS, *, on_gpu=False):
    config, shape = load_config(settings), shape_of(source)
    return config, shape, workload(config, shape, texts, on_gpu=on_gpu)


def loaded(config):
    engine = make_engine(config)
    assert isinstance(engine, InProcessEngine)
    return engine


def part(parts, name):
    return next(one for one in parts if one.name == name)


def test_sizes_are_read_from_a_folder_without_loading_it(tmp_path):
    folder = save_tiny(tmp_path / "m", "qwen2")
    engine = loaded(load_config({"model": str(folder), "engine": CPU}))
    shape = shape_of(str(folder))
    held = dict(engine.model.named_parameters())
    assert {one.name: one.shape for one in shape.tensors} == {
        name: tuple(tensor.shape) for name, tensor in held.items()
    }
    assert shape.stored_dtype == torch.float32


@pytest.mark.parametrize(
    ("space", "optimizer"),
    [
        ("low_rank", "sgd"),
        ({"kind": "low_rank", "rank": 4, "include": ["*mlp*"]}, "adam"),
        ({"kind": "lora", "rank": 2}, {"kind": "sgd", "momentum": 0.9}),
        ({"kind": "lora", "rank": 2, "freeze_a": True}, "sgd"),
        ({"kind": "subspace", "dimension": 8}, "sgd"),
        ({"kind": "full", "layers": "0"}, "adam"),
        ("low_rank", {"kind": "sgd", "weight_decay": 0.1, "decay_to": "start"}),
    ],
)
def test_searched_numbers_are_those_of_the_engine(space, optimizer):
    strategy = {"kind": "nes", "sigma": 0.01, "learning_rate": 0.01, "optimizer": optimizer}
    settings = {"space": space, "strategy": strategy, "engine": CPU}
    config, shape, work = work_of(settings, "nano")
    engine = loaded(config)
    assert work.searched == engine.weights.dimension
    engine.apply(Update(0, 0, 0.01, 0.01, (1.0, -1.0)))
    counted = part(memory_parts(config, shape, work), "optimizer").bytes
    assert counted == sum(one.nbytes for one in engine.weights.optimizer.state.values())


@pytest.mark.parametrize("space", ["low_rank", "lora", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_stays_in_memory_is_counted_to_the_byte(space, dtype):
    settings = {"space": space, "engine": CPU | {"dtype": dtype, "members_per_batch": 1}}
    config, shape, work = work_of(settings, "nano")
    engine = loaded(config)
    held = [*engine.serving.values(), *engine.weights.tensors.values()]
    storages = {one.untyped_storage().data_ptr(): one.nbytes for one in held}
    parts = memory_parts(config, shape, work)
    names = ("weights", "fp32 masters", "stored weights")
    assert sum(storages.values()) == sum(part(parts, name).bytes for name in names)


@pytest.mark.parametrize("space", ["low_rank", "lora"])
def test_the_peak_of_a_microbatch_is_near_what_is_counted(space):
    settings = {
        "task": {"kind": "conciseness", "max_new_tokens": 32},
        "space": space,
        "strategy": {"kind": "nes", "population": 16, "sigma": 0.01, "learning_rate": 0.01},
        "engine": CPU,
        "batch_size": 16,
    }
    config = load_config(settings)
    engine = loaded(config)
    examples = make_task(config.task).examples("train")[:16]
    prompts = [encode_prompt(engine.pretrained.tokenizer, one) for one in examples]
    lengths = TextLengths(16, max(map(len, prompts)), len(pad_prompts(prompts, 0).prefix), 32)
    _, shape, work = work_of(settings, "nano", lengths)
    members = make_strategy(config.strategy, run_seed=0, generations=1).ask(0).members
    with LiveTensors() as live:
        engine.generate(members, examples, Decoding(32))
    parts = [one for one in memory_parts(config, shape, work) if one.name != "program"]
    assert live.peak == pytest.approx(total(parts, "host", on_gpu=False), rel=0.25)


def test_the_start_model_of_a_kl_penalty_is_counted():
    parts = {}
    for coefficient in (None, 0.1):
        task = {"kind": "countdown", "kl_coef": coefficient}
        config, shape, work = work_of({"engine": CPU, "model": QWEN, "task": task})
        parts[coefficient] = memory_parts(config, shape, work)
    more = total(parts[0.1], "host", on_gpu=False) - total(parts[None], "host", on_gpu=False)
    assert more == part(parts[0.1], "weights").bytes == shape.numbers * 4


@pytest.mark.parametrize("space", ["full", "lora"])
def test_a_backward_pass_takes_about_what_is_counted(space):
    method = {"kind": "sft_on_best", "rows": 8}
    settings = {"model": "nano", "space": space, "method": method, "engine": CPU}
    texts = TextLengths(examples=8, prompt=1, prefix=0, new_tokens=33)
    config, shape, work = work_of(settings, "nano", texts)
    engine = loaded(config)
    written = Completion("", (5,) * texts.new_tokens, "length", texts.prompt)
    rows = [TextRow(Example(n, "a", "", chat=False), written) for n in range(8)]

    def likelihood(some):
        return sum(one.log_probs.sum() for one in token_outputs(engine, rows[some], 1.0))

    with LiveTensors() as live:
        summed_gradients(engine, len(rows), len(rows), likelihood)
    counted = part(memory_parts(config, shape, work), "backward pass").bytes
    assert live.peak - 4 * shape.numbers == pytest.approx(counted, rel=0.25)
    without = work_of({**settings, "method": "es"}, "nano", texts)
    assert "backward pass" not in [one.name for one in memory_parts(*without)]


def test_prompts_of_many_rows_are_read_in_pieces_on_a_gpu():
    settings = {"microbatch": {"rows": 1024}, "strategy": {"population": 512}}
    texts = TextLengths(examples=64, prompt=256, prefix=0, new_tokens=256)
    _, shape, work = work_of(settings, published("Qwen/Qwen3-4B"), texts, on_gpu=True)
    tokens, width = prefill_tokens(shape, work)
    assert (tokens, width) == (1024 * 103, 103)
    each = (3 * shape.inner + 4 * shape.hidden + 2 * work.length) * 2
    assert tokens * each <= PREFILL_BYTES < (tokens + 1024) * each
    short = replace(texts, prompt=20)
    assert prefill_tokens(shape, replace(work, texts=short)) == (1024 * 20, 20)


@pytest.mark.parametrize("engine", [{"master_device": "host"}, {"kind": "vllm"}])
def test_masters_on_the_host_leave_the_device(engine):
    parts = memory_parts(*work_of({"engine": engine}, on_gpu=True))
    assert (part(parts, "fp32 masters").place, part(parts, "weights").place) == ("host", "device")
    assert part(parts, "weights").bytes == shape_of(QWEN).numbers * 2


def test_an_episode_has_the_tokens_of_all_its_turns():
    config = load_config({"task": {"kind": "wordle", "max_new_tokens": 8, "max_turns": 5}})
    assert text_lengths(config, make_task(config.task)).new_tokens == 40


def test_prompts_are_measured_with_a_tokenizer_or_by_their_characters():
    config = load_config({"task": "countdown", "batch_size": 4, "model": "nano"})
    task = make_task(config.task)
    measured = text_lengths(config, task)
    assert measured.examples == 4
    assert 1 <= measured.prefix < measured.prompt
    elsewhere = load_config(config.model_dump(), ["model=no-model/of-this-name"])
    longest = max(len(one.prompt) for one in task.examples("train")[:4])
    assert text_lengths(elsewhere, task).prompt >= longest / 3


def test_samples_are_further_rows_of_the_same_microbatches():
    members = {"strategy": {"population": 64}, "task": {"temperature": 1}}
    texts = replace(TEXTS, examples=4)
    few = work_of({**members, "method": {"samples": 8}}, texts=texts)[2]
    many = work_of(members, texts=replace(TEXTS, examples=32))[2]
    assert few == replace(many, texts=texts)
    assert few.generating < 64


def test_where_members_score_only_the_samples_of_the_center_have_a_cache():
    scoring = {
        "method": {"kind": "zo_grpo", "group_size": 4, "rows_per_member": 6},
        "strategy": {"population": 16},
        "batch_size": 8,
    }
    config, shape, work = work_of(scoring)
    few = work_of({"strategy": {"population": 4}})
    assert (work.rows, work.generating, work.scored) == (32, 1, 6)
    parts, same_rows = (memory_parts(*one) for one in ((config, shape, work), few))
    assert part(parts, "KV cache").bytes == part(same_rows, "KV cache").bytes
    assert part(parts, "members").phase == "scoring"


NEW = 16
AUTO = {"task": {"kind": "arithmetic", "max_new_tokens": NEW}, "strategy": {"population": 16}}


def test_members_read_in_turn_and_take_the_memory_that_is_counted(monkeypatch):
    config = load_config(AUTO)
    engine = loaded(config)
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
    counted -= part(parts, "program").bytes
    assert counted == pytest.approx(live.peak, rel=0.25)
    fixed = load_config(AUTO, ["strategy.sigma=0.01"])
    without = memory_parts(fixed, shape, work)
    assert total(without, "host", on_gpu=False) <= total(parts, "host", on_gpu=False)
    assert not [one for one in without if one.phase == "calibration"]


RECIPES = {name: path for name, path in preset_configs().items() if name.startswith("recipes/")}
MEMORY_GB = {"8gb": 8.0, "2xt4": 15.8, "24gb": 24.0, "80gb": 80.0}
USABLE = 0.9
"""Share of a GPU's memory that an estimate may take: the rest is for what is not counted."""


@pytest.mark.parametrize("name", mostly_slow(RECIPES, quick=[*RECIPES][:2]))
def test_a_recipe_fits_its_hardware_and_measures_sigma_and_learning_rate(name):
    config = load_config(RECIPES[name])
    assert not config.strategy.changed("sigma", "learning_rate")
    gpu = re.search(r"8gb$|2xt4$|24gb$|80gb", name)
    assert gpu
    machine = Machine(gpu[0], True, USABLE * MEMORY_GB[gpu[0]] * 1e9, math.inf)
    texts = text_lengths(config, make_task(config.task))
    assert not estimate(config, shape_of(published(config.model)), texts, machine).lacking


LIMITS = {
    "version 2": ("", "memory.max", "memory.current", "inactive_file"),
    "version 1": (
        "memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
}


@pytest.mark.parametrize("names", LIMITS.values(), ids=LIMITS)
def test_the_limit_of_a_container_is_the_memory(tmp_path, monkeypatch, names):
    # Found from outside: inside a container, the memory of the host was shown.
    folder, limit, used, cached = names
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / limit).write_text("100000000\n")
    (tmp_path / folder / used).write_text("60000000\n")
    (tmp_path / folder / "memory.stat").write_text(f"anon 1\n{cached} 20000000\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    assert (total_bytes(), available_bytes()) == (100e6, 60e6)
    (tmp_path / folder / limit).write_text("max\n")
    assert available_bytes() > 100e6


def test_the_gpu_is_described_by_its_driver(monkeypatch):
    # Found from outside: an H200 was computed as an RTX 4090, and a V100 was said to have bf16.
    monkeypatch.setattr(machine, "available_bytes", lambda: 9e9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (141 * 10**9, 144 * 10**9))
    for name, capability in (("NVIDIA H200", (9, 0)), ("Tesla V100", (7, 0))):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, is_=capability: is_)
        found = machine_here(load_config({}))
        assert (found.name, found.device_bytes, found.host_bytes) == (name, 141e9, 9e9)
        assert found.has_bfloat16 == (capability >= (8, 0))
    assert machine_here(load_config({"engine": {"kind": "sglang", "base_url": "http://x"}})).on_gpu
