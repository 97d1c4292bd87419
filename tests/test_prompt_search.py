"""The search beside the weights: what members draw, how the odds move, and how it is played."""

import math
from dataclasses import replace

import numpy as np
import pytest

import germline
from germline.config import Nes, load_config
from germline.methods.method import make_method, with_state
from germline.methods.prompt_search import STATE
from germline.record import RunDirectory
from germline.run import build_run_parts
from germline.strategies import make_strategy
from germline.tasks.task_settings import PromptFormatter
from germline.types import Example, GermlineError, PromptVariant, Update
from tests.toy_runs import run, settings

pytestmark = pytest.mark.usefixtures("graded_in_process")

TWO = "prompt_search={template: ['{prompt}', 'So: {prompt}'], temperature: [0, 0.7, 1.0]}"
TOY = ("task.temperature=0", TWO)


def choosing(population=8, antithetic=True, **section):
    section = section or {"temperature": [0, 1], "few_shot": [0, 1, 2]}
    nes = Nes(population=population, antithetic=antithetic, sigma=0.005, learning_rate=0.01)
    strategy = make_strategy(nes, run_seed=3, generations=100)
    return Choosing(make_method(load_config({"seed": 3, "prompt_search": section}), strategy))


class Choosing:
    """The method that learns prompt options, told utilities without a model."""

    def __init__(self, method):
        self.method, self.strategy = method, method.strategy
        self.ask, self.likeliest = method.ask, method.likeliest

    @property
    def probabilities(self):
        return self.method.probabilities

    def tell(self, population, utilities):
        state = {STATE: self.method.learn_options(population, utilities)}
        return with_state(self.strategy.tell(population, utilities), state)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole") / "run", *TOY)


# --- what members draw


@pytest.mark.parametrize("antithetic", [True, False])
def test_the_two_of_a_pair_play_with_the_same_and_others_draw_alone(antithetic):
    variants = choosing(population=64, antithetic=antithetic).ask(0).prompt_variants
    pairs = zip(variants[::2], variants[1::2], strict=True)
    assert all(one == other for one, other in pairs) == antithetic
    assert len(set(variants)) > 2


def test_settings_and_generations_are_drawn_independently():
    strategy = choosing(population=400, temperature=[0, 1], few_shot=[0, 1])
    drawn = [(one.temperature, one.few_shot) for one in strategy.ask(0).prompt_variants[::2]]
    counts = [drawn.count(pair) for pair in ((0, 0), (0, 1), (1, 0), (1, 1))]
    assert min(counts) > 30
    population = strategy.ask(0)
    strategy.tell(population, np.zeros(400))
    assert strategy.ask(1).prompt_variants != population.prompt_variants


def test_options_are_drawn_as_often_as_is_likely():
    strategy = choosing(population=2000, temperature=[0, 1], learning_rate=1.0)
    population = strategy.ask(0)
    wanted = [0.3 if one.temperature == 1 else -0.3 for one in population.prompt_variants]
    strategy.tell(population, np.array(wanted))
    share = np.mean([one.temperature == 1 for one in strategy.ask(1).prompt_variants])
    assert share == pytest.approx(strategy.probabilities[0][1], abs=0.04)
    assert share > 0.55


# --- how the odds move


def test_probabilities_follow_the_equation():
    strategy = choosing(population=12, antithetic=False, temperature=[0, 0.5, 1], min_probability=0)
    random = np.random.default_rng(1)
    expected = np.full(3, 1 / 3)
    for generation in range(10):
        population = strategy.ask(generation)
        shaped = random.normal(size=12)
        update = strategy.tell(population, shaped)
        shown = np.array(
            [[one.temperature == t for t in (0, 0.5, 1)] for one in population.prompt_variants]
        )
        expected = expected + 0.3 / 12 * (shaped[:, None] * (shown - expected)).sum(0)
        np.testing.assert_allclose(update.strategy_state["choices"][0], expected, rtol=1e-12)


def test_no_option_falls_below_the_smallest_probability():
    strategy = choosing(
        population=16, temperature=[0, 0.5, 1], learning_rate=1.0, min_probability=0.1
    )
    for generation in range(40):
        population = strategy.ask(generation)
        probabilities = strategy.tell(
            population,
            np.array([1.0 if one.temperature else -1.0 for one in population.prompt_variants]),
        ).strategy_state["choices"][0]
        assert math.fsum(probabilities) == pytest.approx(1, abs=1e-12)
        assert min(probabilities) >= 0.1 - 1e-12
    assert probabilities[0] == pytest.approx(0.1)


def test_without_differences_the_probabilities_stay():
    strategy = choosing()
    strategy.tell(strategy.ask(0), np.zeros(8))
    assert strategy.probabilities == ((0.5, 0.5), pytest.approx((1 / 3,) * 3))


def test_the_center_plays_the_likeliest_and_of_equals_the_first():
    strategy = choosing(temperature=[1, 0])
    assert strategy.likeliest() == PromptVariant(temperature=1.0)
    population = strategy.ask(0)
    strategy.tell(
        population, np.array([1 - 2 * one.temperature for one in population.prompt_variants])
    )
    assert strategy.likeliest() == PromptVariant(temperature=0.0)


def test_the_weights_learn_as_without_a_prompt_search():
    shaped = np.arange(8.0)
    plain = choosing().strategy
    strategy = choosing()
    update = strategy.tell(strategy.ask(0), shaped)
    assert update.coefficients == plain.tell(plain.ask(0), shaped).coefficients


def test_a_generation_is_asked_once_those_before_it_were_told():
    with pytest.raises(GermlineError, match="the prompt options in generation 1 depends on"):
        choosing().ask(1)


# --- how it is put to a model

TRAIN = [Example(n, f"{n}?", str(n), chat=True) for n in range(6)]


def formatted(example, rows=TRAIN, most=3, **variant):
    presenter = PromptFormatter(rows, run_seed=0, most=most)
    return presenter.format_prompt(example, PromptVariant(**variant)).prompt


def test_solved_examples_precede_the_prompt_and_never_the_example_itself():
    for example in TRAIN:
        *shown, prompt = formatted(example, few_shot=3).split("\n\n")
        assert prompt == example.prompt
        assert len(set(shown)) == 3
        assert all(one == f"{one[0]}?\n{one[0]}" for one in shown)
        assert not any(one.startswith(example.prompt) for one in shown)


def test_fewer_shots_are_the_first_of_more():
    outside = Example(9, "9?", "9", chat=True)
    two, three = (formatted(outside, few_shot=shots).split("\n\n") for shots in (2, 3))
    assert two[:2] == three[:2]


def test_a_template_goes_around_every_prompt():
    prompt = formatted(TRAIN[0], most=1, template="Q {prompt}!", few_shot=1)
    assert [one.splitlines()[0][:2] for one in prompt.split("\n\n")] == ["Q ", "Q "]
    assert prompt.endswith("Q 0?!")


def test_without_chat_an_answer_goes_on_from_its_prompt():
    raw = [replace(one, chat=False) for one in TRAIN]
    shown = formatted(raw[0], raw, most=1, few_shot=1)
    number = shown[0]
    assert shown == f"{number}? {number}\n\n0?"


def test_too_few_solved_examples_are_told():
    unsolved = [replace(one, answer="") for one in TRAIN[2:]]
    with pytest.raises(GermlineError, match=r"up to 2 solved .* has 2 with an answer"):
        PromptFormatter([*TRAIN[:2], *unsolved], run_seed=0, most=2)


# --- how it is played


def test_every_member_uses_its_options_and_graded_in_its_place():
    with build_run_parts(settings(*TOY)) as parts:
        population, batch = parts.method.ask(0), parts.batch(0)
        together = parts.method.evaluate_members(parts.fleet, population, batch, parts.decoding)
        for place, (member, choice) in enumerate(
            zip(population.members, population.prompt_variants, strict=True)
        ):
            assert choice.template is not None
            assert choice.temperature is not None
            shown = [
                replace(one, prompt=choice.template.replace("{prompt}", one.prompt))
                for one in batch
            ]
            alone = parts.fleet.evaluate(
                replace(population, members=(member,), prompt_variants=()),
                shown,
                replace(parts.decoding, temperature=choice.temperature),
            )
            assert together.rewards[place].tolist() == alone.rewards[0].tolist()
            texts = [one.completion for one in together.rollouts if one.member == place]
            assert texts == [one.completion for one in alone.rollouts]


def test_rollouts_are_told_by_the_tasks_own_prompt(whole):
    prompts = {row["prompt"] for row in RunDirectory.open(whole).rollouts()}
    assert not any(one.startswith("So: ") for one in prompts)


def test_eval_plays_as_the_center_of_the_run_does(whole):
    score, _ = germline.evaluate(str(whole), limit=5)
    assert score.mean == RunDirectory.open(whole).held_out()[-1].score.mean


def test_every_generation_records_the_odds(whole):
    directory = RunDirectory.open(whole)
    for row, entry in zip(directory.generations(), directory.journal.read(), strict=True):
        assert list(row["option_probabilities"]) == ["template", "temperature"]
        assert isinstance(entry.update, Update)
        assert tuple(row["option_probabilities"]["temperature"].values()) == tuple(
            entry.update.strategy_state["choices"][1]
        )
