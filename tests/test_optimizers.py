"""Optimizers: the formula, the same bits however the work is cut, and resuming."""

import math

import numpy as np
import pytest
import torch

from germline import config
from germline.optimizers import Adam, Sgd, fp32_arithmetic, make_optimizer
from germline.optimizers.weight_decay import StartingWeights
from germline.registry import sections
from germline.types import GermlineError, Update

OPTIMIZERS = {
    **{kind: {"kind": kind} for kind in sections("optimizer")},
    "momentum": {"kind": "sgd", "momentum": 0.5},
    "to zero": {"kind": "sgd", "weight_decay": 0.5},
    "to start": {"kind": "adam", "weight_decay": 0.5, "decay_to": "start"},
}
NAMES = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.m")


@pytest.fixture
def threads():
    """Set the number of threads and put it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def tensors(seed, shape=(37, 11), scale=1.0):
    rng = np.random.default_rng(seed)
    return {n: torch.tensor(scale * rng.standard_normal(shape), dtype=torch.float32) for n in NAMES}


def make(kind, masters=None):
    optimizer = make_optimizer(config.Nes(optimizer=OPTIMIZERS[kind]).optimizer)
    optimizer.begin(tensors(0) if masters is None else masters)
    return optimizer


def run(optimizer, masters, steps, first=0, rate=0.01):
    if first == 0:
        optimizer.begin(masters)
    for step in range(first, first + steps):
        gradients = tensors(1000 + step, next(iter(masters.values())).shape)
        for name, master in masters.items():
            optimizer.step(name, master, gradients[name], rate * (1 + step % 3), step)
    return masters


def same_bits(a, b):
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gradient_is_left_as_it_was(kind):
    gradient = tensors(1)[NAMES[0]]
    before = gradient.clone()
    make(kind).step(NAMES[0], tensors(0)[NAMES[0]], gradient, 0.1, 0)
    assert torch.equal(gradient, before)


def test_momentum_rounds_each_operation_once():
    sgd, masters, name = Sgd(momentum=0.9), tensors(0), NAMES[0]
    theta, v, f = masters[name].numpy().copy(), np.float32(0), np.float32
    for step in range(5):
        gradient = tensors(50 + step)[name]
        sgd.step(name, masters[name], gradient, 0.01, step, unit=0.3)
        v = v * f(0.9) + gradient.numpy()
        theta = theta + v * f(0.01 * 0.3)
    assert np.array_equal(masters[name].numpy(), theta)


@pytest.mark.parametrize("to_start", [False, True])
@pytest.mark.parametrize("kind", [config.Sgd, config.Adam])
def test_decay_rounds_each_operation_once_before_the_step_of_the_other_optimizer(kind, to_start):
    settings = kind(weight_decay=0.5, decay_to="start" if to_start else "zero")
    decaying, plain = make_optimizer(settings), make_optimizer(kind())
    masters, name, f = tensors(0), NAMES[0], np.float32
    expected = masters[name].clone()
    anchor = expected.numpy().copy() if to_start else f(0)
    decaying.begin(masters)
    for step in range(5):
        gradient = tensors(50 + step)[name]
        decaying.step(name, masters[name], gradient, 0.02, step)
        theta = expected.numpy()
        theta += (theta - anchor) * f(-0.02 * 0.5)
        plain.step(name, expected, gradient, 0.02, step)
        assert torch.equal(masters[name], expected)
    assert same_bits(decaying.state, plain.state)


@pytest.mark.parametrize("to", ["zero", "start"])
def test_an_update_may_have_a_decay_of_its_own_and_none_passes_the_start(to):
    settings = config.Sgd(weight_decay=0.25, decay_to=to)
    start = tensors(0)["lm_head.m"]
    for decay, rate, left, of_start in ((0.5, 0.0, 0.5, 1), (0.0, 2.0, 0.5, 0.5), (0.0, 9.0, 0, 0)):
        optimizer, master = make_optimizer(settings, keeps_start=True), start + 1
        optimizer.begin({"w": start})
        optimizer.begin_update(Update(0, 0, 0.05, 2.0, (3.0, -4.0), decay=decay))
        optimizer.step("w", master, torch.zeros_like(start), rate, 0)
        expected = start + left if to == "start" else start * of_start + left
        assert torch.allclose(master, expected, atol=1e-6)


def test_decay_has_no_unit():
    moved = []
    for unit in (1.0, 0.01):
        decaying, master = make_optimizer(config.Sgd(weight_decay=0.5)), torch.ones(3)
        decaying.step("w", master, torch.zeros(3), 0.1, 0, unit)
        moved.append(master)
    assert torch.equal(*moved)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_starting_weights_are_kept_as_narrow_as_the_checkpoint_and_lose_nothing(dtype):
    start = tensors(3)[NAMES[0]].to(dtype).float()
    decaying, master = make_optimizer(config.Sgd(weight_decay=1.0, decay_to="start")), start.clone()
    decaying.begin({"w": master})
    assert StartingWeights({"w": master}).read("w").dtype == dtype
    decaying.step("w", master, torch.zeros_like(start), 1.0, 0)
    assert torch.equal(master, start)


def test_starting_weights_that_cannot_be_written_name_the_folder(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    with pytest.raises(GermlineError, match=r"missing.*TMPDIR"):
        make("to start")


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bits_do_not_depend_on_the_number_of_threads(kind, threads):
    results = []
    for count in (1, 2):
        threads(count)
        optimizer = make(kind)
        results.append((run(optimizer, tensors(0, (400, 301)), 3), optimizer.state))
    assert same_bits(results[0][0], results[1][0])
    assert same_bits(results[0][1], results[1][1])


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("chunk", [1, 7, 64, 406, 407])
def test_bits_do_not_depend_on_the_chunk_size(kind, chunk, monkeypatch):
    whole = run(make(kind), tensors(0), 3)
    monkeypatch.setattr(fp32_arithmetic, "_CHUNK", chunk)
    assert same_bits(run(make(kind), tensors(0), 3), whole)


def test_adam_rounds_each_operation_once():
    # The same operations in numpy, whose square root is correctly rounded.
    adam, masters, name = Adam(), tensors(0), NAMES[0]
    f = np.float32
    theta, m, v = masters[name].numpy().copy(), f(0), f(0)
    for step in range(5):
        gradient = tensors(50 + step)[name]
        adam.step(name, masters[name], gradient, 0.01, step)
        g = gradient.numpy()
        m = m * f(0.9) + g * f(1 - 0.9)
        v = v * f(0.999) + g * g * f(1 - 0.999)
        powers = math.prod([0.9] * (step + 1)), math.prod([0.999] * (step + 1))
        root = f(1 / math.sqrt(1 - powers[1]))
        theta = theta + m / (np.sqrt(v) * root + f(1e-8)) * f(0.01 / (1 - powers[0]))
    assert np.array_equal(masters[name].numpy(), theta)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gpu_takes_the_same_steps_as_the_cpu(kind):
    results = []
    for device in ("cpu", "cuda"):
        master = tensors(0, (400, 301))[NAMES[0]].to(device)
        optimizer = make(kind, {"w": master})
        for step in range(3):
            gradient = tensors(1000 + step, (400, 301))[NAMES[0]].to(device)
            optimizer.step("w", master, gradient, 0.01, step)
        results.append({"w": master.cpu()} | {k: t.cpu() for k, t in optimizer.state.items()})
    assert same_bits(*results)


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_save_load_continue_equals_never_stopping(kind, stop):
    straight = make(kind)
    expected = run(straight, tensors(0), 6)
    first = make(kind)
    masters = run(first, tensors(0), stop)
    saved = {key: tensor.clone() for key, tensor in first.state.items()}
    second = make(kind)
    second.load_state_dict(saved)
    assert same_bits(run(second, masters, 6 - stop, first=stop), expected)
    assert same_bits(dict(sorted(second.state.items())), dict(sorted(straight.state.items())))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_has_the_declared_size(kind):
    optimizer, masters = make(kind), tensors(0)
    run(optimizer, masters, 1)
    numbers = sum(master.numel() for master in masters.values())
    size = sum(tensor.nbytes for tensor in optimizer.state.values())
    assert size == numbers * optimizer.bytes_per_number


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(
    ("master", "gradient", "message"),
    [
        (torch.zeros(4).bfloat16(), torch.zeros(4), "master of 'w' is torch.bfloat16"),
        (torch.zeros(4), torch.zeros(4).half(), "gradient of 'w' is torch.float16"),
        (torch.zeros(4), torch.zeros(1), "must agree"),
        (torch.zeros(4, 2).t(), torch.zeros(2, 4), "contiguous=False"),
    ],
)
def test_tensors_that_would_be_cast_or_copied_are_refused(kind, master, gradient, message):
    with pytest.raises(ValueError, match=message):
        make(kind).step("w", master, gradient, 0.1, 0)
