"""What every engine must do in every space: no trace, the same noise, the update of the formula."""

import math

import numpy as np
import pytest

from germline.config import Full, Singular, Subspace
from germline.optimizers import Adam, Sgd
from germline.spaces.subspace import COORDINATES
from germline.testing import EngineConformance
from germline.types import Decoding, Update
from tests.tiny_engines import SPACES, bits, drawn, engine, examples, population, same_bits, tokens

CASES = {
    "toy": tuple(SPACES),
    "qwen2": tuple(SPACES),
    "llama": ("full",),
    "mistral": ("rank 1",),
    "gemma3": ("lora",),
    "gpt2": ("full", "singular"),
}
"""All spaces on two models; on other families what their layers and windows could break."""
DECODING = Decoding(max_new_tokens=6, temperature=0.7, noise_seed=1)
UTILITIES = np.array([1.5, -0.5, 0.25, -1.0, 0.75, -1.0])

pytestmark = pytest.mark.parametrize(
    ("model", "space"), [(model, space) for model in CASES for space in CASES[model]]
)


@pytest.fixture
def section(space):
    return SPACES[space]


class TestContract(EngineConformance):
    """What plugin authors inherit; the other tests look inside the engines."""

    @pytest.fixture(autouse=True)
    def _of_a_model(self, model, section):
        self.model, self.section = model, section
        self.sigma = 1.0 if isinstance(section, Subspace) else 0.1

    def make(self):
        return engine(self.model, self.section, Adam())


@pytest.fixture
def made(model, section):
    return engine(model, section)


def update_of(generation=0, learning_rate=0.5):
    """Utilities to coefficients by hand: c_k = (u+ - u-) / N."""
    pairs = UTILITIES.reshape(-1, 2)
    coefficients = (pairs[:, 0] - pairs[:, 1]) / len(UTILITIES)
    return Update(3, generation, 0.02, learning_rate, tuple(coefficients.tolist()))


def direction(update, info, section):
    """The estimated gradient times sigma, in fp64."""
    members = population(len(UTILITIES), generation=update.generation).seed_perturbations()[::2]
    pairs = zip(update.coefficients, members, strict=True)
    return sum(c * drawn(member, info, section) for c, member in pairs)


def test_a_generation_that_breaks_leaves_every_bit_where_it_was(made, model, monkeypatch):
    center = tokens(made.generate([None], examples(), DECODING))
    digest, before = made.weights.digest(), bits(made)
    room = "toy" if model == "toy" else "decode"
    calls = iter(range(3))

    def break_down(logits, *_rest):
        if next(calls, None) is None:
            raise MemoryError("in the middle")
        return logits.argmax(-1)

    with monkeypatch.context() as patch:
        patch.setattr(f"germline.engines.{room}.choose_tokens", break_down)
        with pytest.raises(MemoryError):
            made.generate(population().members, examples(), DECODING)
    assert made.weights.digest() == digest
    assert same_bits(before, bits(made))
    assert tokens(made.generate([None], examples(), DECODING)) == center


def measured_on(weights, name):
    """Name the tensor a unit is measured on: a layer, for the adapter beside it or its offsets."""
    layers = (layer.name for layer in weights.adapted if name in layer.adapter_names)
    return next(layers, name.replace(".singular", ".weight"))


def natural(weights, name, section):
    """What a unit is times what is measured: for offsets, sigma is that of the weights."""
    if not isinstance(section, Singular):
        return 1.0
    return math.sqrt(weights.tensors[measured_on(weights, name)].numel() / section.top_k)


@pytest.mark.parametrize("sigma_unit", ["constant", "mean_abs", "std"])
def test_the_update_equals_the_fp64_formula(model, section, sigma_unit):
    if sigma_unit == "std" and isinstance(section, Full) and model != "toy":
        # Norms of a fresh model are all ones: std 0. GPT-2 calls them ln_1, ln_2 and ln_f.
        section = Full(exclude=("*.ln_*",) if model == "gpt2" else ("*norm*",))
    moved = engine(model, section, Sgd(), sigma_unit)
    before = {name: t.numpy().astype(np.float64) for name, t in moved.weights.tensors.items()}
    update = update_of()
    moved.apply(update)
    searched = {info.name for info in moved.weights.searched}
    for info in moved.weights.infos:
        theta, found = before[info.name], moved.weights.tensors[info.name].numpy()
        if info.name not in searched:
            assert np.array_equal(found, theta)
            continue
        beside = before[measured_on(moved.weights, info.name)]
        unit = {"constant": 1.0, "mean_abs": np.abs(beside).mean(), "std": beside.std()}[sigma_unit]
        # Coordinates of all layers together: the units of the layers are in their directions.
        unit = (
            1.0 if info.name == COORDINATES else unit * natural(moved.weights, info.name, section)
        )
        step = update.learning_rate * unit * direction(update, info, section)
        assert np.linalg.norm(found - (theta + step)) <= 1e-6 * np.linalg.norm(step)
        size = np.abs(theta) + np.abs(step) + np.sqrt(np.mean(step**2))
        assert np.all(np.abs(found - (theta + step)) <= 1e-6 * size)


def test_adam_equals_its_formula_in_fp64(model, section):
    # Where a gradient nearly cancels, Adam divides one rounding error by another; an epsilon above
    # them leaves the comparison to the formula.
    epsilon = 0.01
    moved = engine(model, section, Adam(0.9, 0.99, epsilon))
    theta = {i.name: moved.weights.tensors[i.name].double().numpy() for i in moved.weights.searched}
    m = dict.fromkeys(theta, 0.0)
    v = dict.fromkeys(theta, 0.0)
    rate = 0.1
    for t in (1, 2, 3):
        update = update_of(t - 1, rate)
        moved.apply(update)
        for info in moved.weights.searched:
            g, name = direction(update, info, section), info.name
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.99 * v[name] + 0.01 * g**2
            corrected = m[name] / (1 - 0.9**t), v[name] / (1 - 0.99**t)
            step = rate * corrected[0] / (np.sqrt(corrected[1]) + epsilon)
            theta[name] = theta[name] + step * natural(moved.weights, name, section)
    for name, expected in theta.items():
        found = moved.weights.tensors[name].numpy()
        assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)


def test_what_a_member_plays_is_scaled_by_the_unit_its_update_is_scaled_by(model, section):
    units = engine(model, section, Sgd(), "mean_abs").weights.units
    constant = engine(model, section).weights
    for name, unit in units.items():
        if name == COORDINATES:
            assert unit == constant.units[name] == 1
            continue
        values = constant.tensors[measured_on(constant, name)].double().abs()
        scale = natural(constant, name, section)
        assert unit == pytest.approx(float(values.mean()) * scale, rel=1e-9)
        assert constant.units[name] == pytest.approx(scale, rel=1e-9)
