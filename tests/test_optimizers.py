"""Optimizers: the formula, the same bits however the work is cut, and resuming."""

import math

import numpy as np
import pytest
import torch

from germline import optimizers
from germline.optimizers import OPTIMIZERS, Adam, Sgd

NAMES = ("model.embed_tokens.weight", "model.norm.weight", "lm_head.m")


@pytest.fixture
def threads():
    """Set the number of threads and put it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def tensors(seed, shape=(37, 11), scale=1.0):
    """Draw fp32 tensors, one per name."""
    rng = np.random.default_rng(seed)
    return {n: torch.tensor(scale * rng.standard_normal(shape), dtype=torch.float32) for n in NAMES}


def run(optimizer, masters, steps, first=0, rate=0.01):
    """Take steps with fixed gradients; returns the masters, moved in place."""
    for step in range(first, first + steps):
        gradients = tensors(1000 + step, next(iter(masters.values())).shape)
        for name, master in masters.items():
            optimizer.step(name, master, gradients[name], rate * (1 + step % 3), step)
    return masters


def same_bits(a, b):
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


# --- the formula ---


def test_sgd_adds_learning_rate_times_gradient():
    masters, gradient = tensors(0), tensors(1)[NAMES[0]]
    expected = masters[NAMES[0]].double() + 0.03 * gradient.double()
    Sgd().step(NAMES[0], masters[NAMES[0]], gradient, 0.03, 0)
    torch.testing.assert_close(masters[NAMES[0]].double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_adam_agrees_with_the_formula_in_float64(scale):
    adam, masters = Adam(0.9, 0.999, 1e-8), tensors(0, scale=1e-3)
    name = NAMES[0]
    start = masters[name].double()
    theta, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for step in range(30):
        gradient = tensors(100 + step, scale=scale)[name]
        adam.step(name, masters[name], gradient, 0.01, step)
        g, t = gradient.double(), step + 1
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta += 0.01 * (m / (1 - 0.9**t)) / (torch.sqrt(v / (1 - 0.999**t)) + 1e-8)
    moved, expected = masters[name].double() - start, theta - start
    assert torch.linalg.norm(moved - expected) < 1e-6 * torch.linalg.norm(expected)


def test_first_step_of_adam_has_the_size_of_the_learning_rate():
    master, gradient = torch.zeros(4), torch.tensor([3.0, -2.0, 1e-3, -1e3])
    Adam().step("w", master, gradient, 0.01, 0)
    torch.testing.assert_close(master, 0.01 * torch.sign(gradient), rtol=1e-4, atol=0)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_climb(kind):
    optimizer, master = OPTIMIZERS[kind](), torch.tensor([3.0, -2.0])
    for step in range(300):
        optimizer.step("w", master, -2 * master, 0.05, step)
    assert master.abs().max() < 0.05


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_gradient_is_left_as_it_was(kind):
    gradient = tensors(1)[NAMES[0]]
    before = gradient.clone()
    OPTIMIZERS[kind]().step(NAMES[0], tensors(0)[NAMES[0]], gradient, 0.1, 0)
    assert torch.equal(gradient, before)


# --- one set of bits ---


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_bits_do_not_depend_on_the_number_of_threads(kind, threads):
    results = []
    for count in (1, 2):
        threads(count)
        optimizer = OPTIMIZERS[kind]()
        results.append((run(optimizer, tensors(0, (400, 301)), 3), optimizer.state_dict()))
    assert same_bits(results[0][0], results[1][0])
    assert same_bits(results[0][1], results[1][1])


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("chunk", [1, 7, 64, 406, 407])
def test_bits_do_not_depend_on_the_chunk_size(kind, chunk, monkeypatch):
    whole = run(OPTIMIZERS[kind](), tensors(0), 3)
    monkeypatch.setattr(optimizers, "_CHUNK", chunk)
    assert same_bits(run(OPTIMIZERS[kind](), tensors(0), 3), whole)


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
        optimizer, master = OPTIMIZERS[kind](), tensors(0, (400, 301))[NAMES[0]].to(device)
        for step in range(3):
            gradient = tensors(1000 + step, (400, 301))[NAMES[0]].to(device)
            optimizer.step("w", master, gradient, 0.01, step)
        results.append(
            {"w": master.cpu()} | {k: t.cpu() for k, t in optimizer.state_dict().items()}
        )
    assert same_bits(*results)


# --- state ---


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("stop", [0, 1, 4])
def test_save_load_continue_equals_never_stopping(kind, stop):
    straight = OPTIMIZERS[kind]()
    expected = run(straight, tensors(0), 6)
    first = OPTIMIZERS[kind]()
    masters = run(first, tensors(0), stop)
    saved = {key: tensor.clone() for key, tensor in first.state_dict().items()}
    second = OPTIMIZERS[kind]()
    second.load_state_dict(saved)
    assert same_bits(run(second, masters, 6 - stop, first=stop), expected)
    assert same_bits(second.state_dict(), straight.state_dict())


def test_loaded_state_is_a_copy():
    adam = Adam()
    run(adam, tensors(0), 1)
    saved = {key: tensor.clone() for key, tensor in adam.state_dict().items()}
    adam.load_state_dict(saved)
    before = {key: tensor.clone() for key, tensor in saved.items()}
    run(adam, tensors(0), 1, first=1)
    assert same_bits(saved, before)


def test_state_is_keyed_by_tensor_and_moment_in_sorted_order():
    adam = Adam()
    run(adam, tensors(0), 1)
    assert list(adam.state_dict()) == sorted(f"{name}.{k}" for name in NAMES for k in "mv")


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_has_the_declared_size(kind):
    optimizer, masters = OPTIMIZERS[kind](), tensors(0)
    run(optimizer, masters, 1)
    numbers = sum(master.numel() for master in masters.values())
    size = sum(tensor.nbytes for tensor in optimizer.state_dict().values())
    assert size == numbers * optimizer.bytes_per_number


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"w.m": torch.zeros(2)}, "'w.m' is not one of a pair"),
        ({"w": torch.zeros(2)}, "'w' is not one of a pair"),
        ({"w.m": torch.zeros(2), "w.v": torch.zeros(2).bfloat16()}, "'w.v' is torch.bfloat16"),
    ],
)
def test_adam_refuses_state_it_did_not_write(state, message):
    with pytest.raises(ValueError, match=message):
        Adam().load_state_dict(state)


def test_sgd_refuses_the_state_of_adam():
    with pytest.raises(ValueError, match=r"optimizer=sgd has no state but was given 'w\.m'"):
        Sgd().load_state_dict({"w.m": torch.zeros(2), "w.v": torch.zeros(2)})


def test_moments_of_another_shape_are_refused():
    adam = Adam()
    adam.load_state_dict({"w.m": torch.zeros(2), "w.v": torch.zeros(2)})
    with pytest.raises(ValueError, match="belongs to another model"):
        adam.step("w", torch.zeros(3), torch.ones(3), 0.1, 0)


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
        OPTIMIZERS[kind]().step("w", master, gradient, 0.1, 0)
