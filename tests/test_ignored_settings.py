"""Every row of the table of ignored settings refuses its setting, and that setting only."""

import re

import pytest

from germline.config import load_config
from germline.config.ignored_settings import DROP, RULES
from germline.types import GermlineError

SGLANG = "engine={kind: sglang, base_url: 'http://x:1'}"
RANDOPT = ("method=randopt", "strategy.sigma=0.1", "strategy.antithetic=false")
GRADIENT = ("method=es_sample_gd", "strategy={antithetic: false, learning_rate: 0.01}")
TEMPERATURE = (
    *("method={kind: es_sample_gd, exploration: temperature}", "task.temperature=1"),
    "strategy.learning_rate=0.01",
)
JSONL = "task={kind: jsonl, path: rows.jsonl}"
FUNCTIONS = (JSONL, "task.reward_functions={length: 1}")

# (setting, a word of the condition): (what makes the condition true, the setting that is refused)
CASES = {
    ("model", "own"): (("engine=toy",), "model=some/model"),
    ("engine.python", "server"): ((SGLANG,), "engine.python=python3"),
    ("engine.device", "server"): ((SGLANG,), "engine.device=cpu"),
    ("engine.startup_timeout_s", "server"): ((SGLANG,), "engine.startup_timeout_s=5"),
    ("fleet.quorum", "no other engine"): ((), "fleet.quorum=0.9"),
    ("fleet.devices", "CUDA_VISIBLE_DEVICES"): (("engine=toy",), "fleet.devices=[cpu]"),
    ("engine.device", "fleet.devices"): (("fleet.devices=[cpu]",), "engine.device=cpu"),
    ("space.init_scale_a", "init_adapter"): (
        ("space={kind: lora, init_adapter: x}",),
        "space.init_scale_a=1",
    ),
    ("space.init_scale_b", "init_adapter"): (
        ("space={kind: lora, init_adapter: x}",),
        "space.init_scale_b=1",
    ),
    ("strategy.optimizer.decay_to", "weight_decay"): ((), "strategy.optimizer.decay_to=start"),
    ("strategy.baseline", "antithetic"): ((), "strategy.baseline=running"),
    ("task.data", "task.path"): (("task.path=x",), "task.data=paper"),
    ("task.puzzles", "task.path"): (("task={kind: countdown, path: x}",), "task.puzzles=field"),
    ("task.split_seed", "test_path"): (("task={path: x, test_path: y}",), "task.split_seed=1"),
    ("task.split_seed", "paper"): (("task.data=paper",), "task.split_seed=1"),
    ("task.split_seed", "test_split"): (
        ("task={kind: dataset, path: x, test_split: test}",),
        "task.split_seed=1",
    ),
    ("task.kl_estimator", "kl_coef"): ((), "task.kl_estimator=k1"),
    ("task.kl_per", "kl_coef"): ((), "task.kl_per=completion"),
    ("task.thinking_tag", "strip_thinking"): ((), "task.thinking_tag=reason"),
    ("task.system_prompt", "chat"): (("task.chat=false",), "task.system_prompt=x"),
    ("task.few_shot", "prompt_search"): (("prompt_search.few_shot=[0, 1]",), "task.few_shot=2"),
    ("task.reward", "with reward functions"): (FUNCTIONS, "task.reward=numeric"),
    ("task.metric", "with reward functions"): (FUNCTIONS, "task.metric=exact"),
    ("task.pattern", "with reward functions"): (FUNCTIONS, "task.pattern=x"),
    ("task.tolerance", "with reward functions"): (FUNCTIONS, "task.tolerance=1"),
    ("task.reward_floor", "without reward functions"): ((), "task.reward_floor=-1"),
    ("task.pattern", "regex"): ((JSONL,), "task.pattern=x"),
    ("task.tolerance", "numeric"): ((JSONL,), "task.tolerance=1"),
    ("prompt_search.learning_rate", "options"): ((), "prompt_search.learning_rate=0.1"),
    ("prompt_search.min_probability", "options"): ((), "prompt_search.min_probability=0.1"),
    ("task.temperature", "prompt_search"): (
        ("prompt_search.temperature=[0, 1]",),
        "task.temperature=0.5",
    ),
    ("strategy.learning_rate", "randopt"): (RANDOPT, "strategy.learning_rate=0.5"),
    ("strategy.noise_reuse", "randopt"): (RANDOPT, "strategy.noise_reuse=2"),
    ("strategy.baseline", "randopt"): (RANDOPT, "strategy.baseline=running"),
    ("strategy.zero_signal", "randopt"): (RANDOPT, "strategy.zero_signal=skip"),
    ("strategy.optimizer", "randopt"): (RANDOPT, "strategy.optimizer.weight_decay=0.5"),
    ("shaping", "randopt"): (RANDOPT, "shaping=raw"),
    ("strategy.sigma", "method.sigmas"): (
        ("method={kind: randopt, sigmas: [0.1, 0.2]}",),
        "strategy.sigma=0.3",
    ),
    ("strategy.baseline", "es_sample_gd"): (GRADIENT, "strategy.baseline=running"),
    ("strategy.noise_reuse", "es_sample_gd"): (TEMPERATURE, "strategy.noise_reuse=2"),
    ("strategy.sigma", "es_sample_gd"): (TEMPERATURE, "strategy.sigma=0.1"),
    ("space.rank", "es_sample_gd"): (TEMPERATURE, "space.rank=4"),
    ("method.clip", "center"): (TEMPERATURE, "method.clip=0.2"),
}


def rules_of(case):
    setting, word = case
    return [rule for rule in RULES if rule.setting == setting and word in rule.condition]


def test_every_rule_has_a_case():
    tested = [rule for case in CASES for rule in rules_of(case)]
    assert [rule for rule in RULES if rule not in tested] == []


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_setting_without_effect_is_refused_and_the_others_are_not(case):
    condition, override = CASES[case]
    load_config({}, condition)
    with pytest.raises(GermlineError) as caught:
        load_config({}, [*condition, override])
    message = str(caught.value)
    (remedy,) = {rule.remedy for rule in rules_of(case)}
    assert re.match(rf"config: {re.escape(case[0])}(=.*|\.kind=\S+)? would be ignored ", message)
    assert case[1] in message
    assert f": {remedy}" in message


def test_the_remedy_names_the_default_that_a_file_may_keep():
    with pytest.raises(GermlineError, match=r"drop it, or set it to its default, 1$"):
        load_config({}, [*TEMPERATURE, "space.rank=4"])
    assert any(rule.remedy == DROP for rule in RULES)
