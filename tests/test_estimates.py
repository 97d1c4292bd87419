"""What a run needs, against what loading and generating then take: bytes are counted exactly."""

import itertools
import math
import pickle
from dataclasses import replace

import pytest
import torch

from benchmarks.memory import LiveTensors
from germline.config import load_config
from germline.engines.decode_batch import PREFILL_BYTES
from germline.engines.inprocess import InProcessEngine, torch_device
from germline.engines.prompt_batch import encode_prompt, pad_prompts
from germline.estimates.estimate import estimate, what_fits
from germline.estimates.hardware import GPUS, Hardware, measure_cpu, memory_limits
from germline.estimates.here import machine_here
from germline.estimates.machine_load import STAT
from germline.estimates.memory import (
    memory_parts,
    prefill_tokens,
    resident_peak,
    snapshot_bytes,
    total,
    wire_bytes,
)
from germline.estimates.model_shape import shape_from, shape_of
from germline.estimates.popular_model_configs import PUBLISHED
from germline.estimates.workload import TextLengths, text_lengths, workload
from germline.fleet.worker_jobs import ApplyJob
from germline.run.build_parts import make_engine
from germline.run.resource_checks import check_memory
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.types import Decoding, GermlineError, Update
from tests.tiny import save_tiny

TEXTS = TextLengths(examples=8, prompt=20, prefix=4, new_tokens=16)
QWEN = "Qwen/Qwen2.5-0.5B"
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


@pytest.mark.parametrize(
    ("source", "billions"),
    [
        ("Qwen/Qwen2.5-0.5B", 0.494),
        ("Qwen/Qwen3-4B", 4.022),
        ("meta-llama/Llama-3.1-8B", 8.030),
        ("google/gemma-3-1b-it", 1.000),
    ],
)
def test_published_shapes_have_the_numbers_of_their_models(source, billions):
    assert shape_of(source).numbers / 1e9 == pytest.approx(billions, rel=2e-3)


@pytest.mark.parametrize(
    ("source", "size"),
    [("nano", "0.92 M"), ("Qwen/Qwen2.5-0.5B", "0.494 B"), ("Qwen/Qwen3-4B", "4.02 B")],
)
def test_the_number_of_weights_is_written_as_in_names_of_models(source, size):
    assert shape_of(source).size == size


def test_sizes_are_read_from_a_folder_without_loading_it(tmp_path):
    folder = save_tiny(tmp_path / "m", "qwen2")
    engine = loaded(load_config({"model": str(folder), "engine": CPU}))
    shape = shape_of(str(folder))
    held = dict(engine.model.named_parameters())
    assert {one.name: one.shape for one in shape.tensors} == {
        name: tuple(tensor.shape) for name, tensor in held.items()
    }
    assert shape.stored_dtype == torch.float32


def test_a_folder_without_a_config_is_refused_by_name(tmp_path):
    with pytest.raises(GermlineError, match=r"config\.json or the files of .* cannot be read"):
        shape_of(str(tmp_path))


@pytest.mark.parametrize(
    ("space", "optimizer"),
    [
        ("low_rank", "sgd"),
        ({"kind": "low_rank", "rank": 4, "include": ["*mlp*"]}, "adam"),
        ({"kind": "lora", "rank": 2}, {"kind": "sgd", "momentum": 0.9}),
        ({"kind": "lora", "rank": 2, "freeze_a": True}, "sgd"),
        ({"kind": "subspace", "dimension": 8}, "sgd"),
        ({"kind": "full", "layers": "0"}, "adam"),
    ],
)
def test_searched_numbers_are_those_of_the_engine(space, optimizer):
    strategy = {"kind": "nes", "sigma": 0.01, "learning_rate": 0.01, "optimizer": optimizer}
    settings = {"space": space, "strategy": strategy, "engine": CPU}
    config, _, work = work_of(settings, "nano")
    engine = loaded(config)
    assert work.searched == engine.weights.dimension
    engine.apply(Update(0, 0, 0.01, 0.01, (1.0, -1.0)))
    moments = engine.weights.optimizer.state_dict()
    state = sum(one.nbytes for one in moments.values()) + 4 * engine.weights.dimension
    assert snapshot_bytes(work) == state


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
    assert live.peak == pytest.approx(
        total([replace(p, place="host") for p in parts], "host"), rel=0.25
    )


def test_loading_maps_files_that_are_served_in_another_dtype():
    config, shape, work = work_of({"engine": CPU | {"dtype": "float32"}})
    parts = memory_parts(config, shape, work)
    assert part(parts, "files, mapped").bytes == 2 * shape.numbers
    assert resident_peak(parts) == pytest.approx(6 * shape.numbers + 510e6)
    half = memory_parts(*work_of({"engine": CPU | {"dtype": "bfloat16"}}))
    assert part(half, "files, mapped").bytes == 0


def test_the_start_model_of_a_kl_penalty_is_counted():
    parts = {}
    for coefficient in (None, 0.1):
        task = {"kind": "countdown", "kl_coef": coefficient}
        config, shape, work = work_of({"engine": CPU, "model": QWEN, "task": task})
        parts[coefficient] = memory_parts(config, shape, work)
    more = total(parts[0.1], "device") - total(parts[None], "device")
    assert more == part(parts[0.1], "weights").bytes == shape.numbers * 4


def test_prompts_of_many_rows_are_read_in_pieces_on_a_gpu():
    settings = {"microbatch": {"rows": 1024}, "strategy": {"population": 512}}
    texts = TextLengths(examples=64, prompt=256, prefix=0, new_tokens=256)
    _, shape, work = work_of(settings, "Qwen/Qwen3-4B", texts, on_gpu=True)
    tokens, width = prefill_tokens(shape, work)
    assert (tokens, width) == (1024 * 103, 103)
    each = (3 * shape.inner + 4 * shape.hidden + 2 * work.length) * 2
    assert tokens * each <= PREFILL_BYTES < (tokens + 1024) * each
    short = replace(texts, prompt=20)
    assert prefill_tokens(shape, replace(work, texts=short)) == (1024 * 20, 20)


def test_masters_on_the_host_leave_the_device():
    parts = memory_parts(*work_of({"engine": {"master_device": "host"}}, on_gpu=True))
    assert part(parts, "fp32 masters").place == "host"
    assert part(parts, "weights").place == "device"


def test_an_engine_of_its_own_keeps_masters_on_the_host():
    parts = memory_parts(*work_of({"engine": {"kind": "vllm", "tensor_parallel": 2}}, on_gpu=True))
    shape = shape_of(QWEN)
    assert part(parts, "weights").bytes == shape.numbers * 2 / 2
    assert part(parts, "fp32 masters").place == "host"


def test_bytes_on_the_wire_are_near_those_that_are_pickled():
    _, _, work = work_of({"strategy": {"kind": "nes", "population": 32}, "batch_size": 8})
    work = replace(work, engines=2)
    fixed = {"sigma": 0.01, "learning_rate": 0.01, "population": 32}
    told = load_config({"strategy": {"kind": "nes", **fixed}})
    members = make_strategy(told.strategy, run_seed=0, generations=1).ask(0).members
    names = len(pickle.dumps(list(members), protocol=pickle.HIGHEST_PROTOCOL)) / len(members)
    job = ApplyJob(Update(0, 0, 0.01, 0.01, tuple(0.1 * n for n in range(16))))
    update = len(pickle.dumps(job, protocol=pickle.HIGHEST_PROTOCOL))
    assert names <= 60
    assert update <= 9 * 16 + 1000
    assert wire_bytes(work) == pytest.approx(60 + 8 * 15 + 1000 / 32 + 2 * 9 * 16 / 32)


def test_an_episode_has_the_tokens_of_all_its_turns():
    config = load_config({"task": {"kind": "wordle", "max_new_tokens": 8, "max_turns": 5}})
    assert text_lengths(config).new_tokens == 40


def test_prompts_are_measured_with_a_tokenizer_or_by_their_characters():
    config = load_config({"task": "countdown", "batch_size": 4})
    by_words = text_lengths(config, lambda example: [1, 2, *map(len, example.prompt.split())])
    assert by_words.prefix >= 2
    assert by_words.examples == 4
    longest = max(len(one.prompt) for one in make_task(config.task).examples("train")[:4])
    assert text_lengths(config).prompt >= longest / 3


def slow(bandwidth=1e9, flops=1e9):
    rates = {"float32": ((1, flops), (100, 10 * flops)), "bfloat16": ((1, flops),)}
    machine = memory_limits(on_gpu=False, device_bytes=1e9, host_bytes=1e9)
    every = dict.fromkeys(rates, math.inf)
    return replace(machine, bandwidth=bandwidth, products=rates, elementwise_per_s=every)


def test_a_product_takes_the_longer_of_arithmetic_and_reading():
    by_arithmetic = slow(bandwidth=1e15).product_s(torch.float32, 1, 1e6)
    assert by_arithmetic == pytest.approx(2e-3)
    assert slow(flops=1e18).product_s(torch.float32, 1, 1e6) == pytest.approx(4e-3)


def test_rates_between_measured_rows_are_interpolated():
    machine = slow()
    assert machine.flops(torch.float32, 10) == pytest.approx(10**0.5 * 1e9)
    assert machine.flops(torch.float32, 1000) == 1e10


def test_a_machine_is_measured_with_any_clock():
    ticks = iter(range(10**6))
    machine = measure_cpu(torch.float32, 64, 96, lambda: float(next(ticks)))
    assert isinstance(machine, Hardware)
    assert machine.flops(torch.float32, 16) > 0
    assert machine.host_bytes > 0
    assert machine.source_of_times.startswith("times are from a measurement just now")


def test_times_are_means_over_the_waits_for_a_core():
    def rate(*steps):
        clock = map(float, itertools.accumulate(itertools.cycle(steps))).__next__
        return measure_cpu(torch.float32, 64, 96, clock).flops(torch.float32, 16)

    assert rate(0.03, 0.09) == pytest.approx(rate(0.09, 0.03), rel=0.3)


def test_a_measurement_beside_other_programs_says_so():
    machine = memory_limits(on_gpu=False, device_bytes=1e9, host_bytes=1e9)
    told = [replace(machine, used_by_others=n).source_of_times for n in (0.7, 0.05, None)]
    assert "beside other programs that used 70% of the cores" in told[0]
    assert "%" not in told[1] + told[2]
    assert measure_cpu(torch.float32, 64, 96).used_by_others is not None or not STAT.is_file()


def test_more_rows_tokens_and_members_take_longer():
    def seconds(**changes):
        settings = {"strategy": {"kind": "nes", "population": changes.pop("population", 16)}}
        texts = replace(TEXTS, **changes)
        return estimate(load_config(settings), shape_of(QWEN), texts, GPUS["80gb"]).seconds.total

    assert seconds() < seconds(new_tokens=32)
    assert seconds() < seconds(population=2048)
    assert seconds() < seconds(prompt=2000)


@pytest.mark.parametrize(
    ("gigabytes", "settings", "expected"),
    [
        (2.4, {"engine": CPU}, ("engine.dtype=bfloat16", "space=lora")),
        (4.0, {"engine": CPU | {"dtype": "float32"}}, None),
        (0.1, {"engine": CPU}, ()),
    ],
)
def test_what_fits_is_named(gigabytes, settings, expected):
    config, shape = load_config({"microbatch": {"rows": 64}, **settings}), shape_of(QWEN)
    limits = memory_limits(on_gpu=False, device_bytes=gigabytes * 1e9, host_bytes=gigabytes * 1e9)
    work = workload(config, shape, TEXTS, on_gpu=False)
    fits = total([replace(p, place="host") for p in memory_parts(config, shape, work)], "host")
    if expected is None:
        assert fits <= gigabytes * 1e9
        return
    found = what_fits(config, shape, TEXTS, limits)
    assert set(expected) <= set(found)
    assert bool(found) == bool(expected)


@pytest.mark.parametrize("gigabytes", [2.05, 2.2, 2.7])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_no_setting_is_proposed_without_need(gigabytes, on_gpu):
    config, shape = load_config({"microbatch": {"rows": 256}}), shape_of(QWEN)
    sizes = {"memory_bytes" if on_gpu else "host_bytes": gigabytes * 1e9}
    limits = replace(GPUS["laptop-8gb"], on_gpu=on_gpu, **sizes)

    def fits(overrides):
        try:
            changed = load_config(config.model_dump(), overrides)
        except GermlineError:
            return False
        return estimate(changed, shape, TEXTS, limits).fits

    found = what_fits(config, shape, TEXTS, limits)
    assert fits(found)
    for one in found:
        assert not fits([other for other in found if other != one]), found


@pytest.mark.parametrize(
    ("model", "hardware", "half"),
    [
        ("Qwen/Qwen3-4B", "t4", "float16"),
        ("meta-llama/Llama-3.1-8B", "24gb", "bfloat16"),
    ],
)
def test_the_half_precision_that_is_proposed_is_one_that_the_device_has(model, hardware, half):
    config = load_config({"model": model, "engine": {"dtype": "float32"}})
    found = what_fits(config, shape_of(model), TEXTS, GPUS[hardware])
    assert f"engine.dtype={half}" in found


def test_smaller_microbatches_are_the_largest_that_fit():
    config, shape = load_config({"microbatch": {"rows": 1024}}), shape_of(QWEN)
    texts = TextLengths(64, 200, 0, 800)
    found = what_fits(config, shape, texts, GPUS["laptop-8gb"])
    assert found == ("microbatch.rows=128",)  # 256 fit with masters on the host


def test_a_config_is_not_changed_by_reading_it():
    before = dict(PUBLISHED[QWEN])
    shape_of(QWEN)
    assert dict(PUBLISHED[QWEN]) == before
    assert shape_from("x", dict(before)).numbers == shape_of(QWEN).numbers


@pytest.mark.slow
def test_this_machine_is_measured_with_the_threads_of_the_config():
    before = torch.get_num_threads()
    other = before + 1
    try:
        config = load_config({"engine": CPU | {"threads": other}})
        assert f"{other} threads" in machine_here(config, shape_of(QWEN)).name
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("device", ["quantum", "cuda:99"])
def test_a_device_that_is_not_here_is_refused_by_name(device):
    with pytest.raises(GermlineError, match=rf"engine.device='{device}' cannot be used here"):
        machine_here(load_config({}, [f"engine.device={device}"]), shape_of(QWEN))


def test_an_inference_engine_may_have_a_device_that_this_pytorch_lacks(monkeypatch):
    monkeypatch.setattr("germline.estimates.hardware.available_bytes", lambda: 64e9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    served = {"engine": {"kind": "sglang", "launch": True, "device": "cuda:99"}}
    check_memory(load_config(served | {"model": QWEN}))
    assert torch_device("cuda:99", must_exist=False) == torch.device("cuda:99")
    with pytest.raises(GermlineError, match=r"engine\.device=.quantum. cannot be used here"):
        torch_device("quantum", must_exist=False)
