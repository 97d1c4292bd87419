"""Settings that have no effect, or cannot work, beside other settings of a config.

A rule names settings and the values of others beside which they are refused. Rules hold for what a
person asks for. They are not applied when a run is opened, whose settings were asked for once: a
later version may have other defaults and more rules.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from germline.config.base import Section
from germline.config.run_config import Config
from germline.config.schedules import LARGEST_SIGMA
from germline.config.search import Nes
from germline.types import GermlineError

ITSELF = ""
"""Stands for the refused setting in the conditions of a rule."""


@dataclass(frozen=True)
class Rule:
    """A combination of settings that is refused.

    Attributes:
        settings: the refused settings, as overrides spell them.
        beside: settings (or properties of sections) -> their value, or a function that returns
            whether the rule holds for it; all have to hold, and the first one is shown.
    """

    settings: str
    beside: Mapping[str, object]
    remedy: str = "drop it"


def anything(_: object) -> bool:
    """Whether there is such a setting."""
    return True


def given(value: object) -> bool:
    """Whether a setting has a value."""
    return value not in (None, (), {})


def not_given(value: object) -> bool:
    """Whether a setting has no value."""
    return not given(value)


def other_than(*values: object) -> Callable[[object], bool]:
    """Return whether a setting has none of these values."""
    return lambda value: value not in values


def above(limit: float) -> Callable[[object], bool]:
    """Return whether a setting is a number above a limit."""
    return lambda value: isinstance(value, float | int) and value > limit


MEMBERS = ("kind", "population", "antithetic", "sigma", "sigma_unit")
"""Settings of nes that determine which members are evaluated; the others determine the update."""

STEPS = ("kind", "learning_rate", "optimizer", "zero_signal")
"""Settings of nes that determine the step alone."""

KEEP_ONE = "drop one of them"
NUMBER = "give a number, such as 0.01"
SAMPLING = {"method.exploration": "temperature"}
SEVERAL = {"method.samples": above(1), "prompt_search.temperature": not_given}
OWN_MESSAGES = {"task.kind": "verifiers"}
VOTING = {"method.kind": anything, "method.trains_center": False}
FUNCTIONS = {"task.reward_functions": given}
MEASURED = {"strategy.learning_rate.kind": "auto"}
OF_SEEDS = {"method.kind": anything, "method.members_are_seeds": True}
SCORING = {"method.kind": anything, "method.members_generate": False}
SAMPLES = {"method.kind": anything, "method.perturbs": False}
GRADIENT = {"method.kind": anything, "method.backpropagates": True}
RUNNING = {"strategy.baseline.kind": "running"}
OPTIONS = {"prompt_search.options": given}
NO_OPTIONS = {"method.kind": anything, "method.searches_prompts": False}
SERVED = {"engine.kind": anything, "engine.is_served": True}
SIGMAS = "strategy.sigma strategy.sigma.start strategy.sigma.end"

IGNORED = (
    Rule("model", {"engine.kind": anything, "engine.has_own_model": True}, KEEP_ONE),
    Rule(
        "engine.python engine.device engine.threads engine.options engine.startup_timeout_s",
        {"engine.base_url": given},
        "give it to the server, and drop it here",
    ),
    Rule("fleet.quorum", {"fleet.engines": 1, "fleet.in_process": True}),
    Rule("space.init_scale_a space.init_scale_b", {"space.init_adapter": given}, KEEP_ONE),
    Rule("strategy.optimizer.decay_to", {"strategy.optimizer.weight_decay": 0}, "set weight_decay"),
    Rule("strategy.baseline", {"strategy.antithetic": True}, "use strategy.antithetic=false"),
    Rule("method.fitness", {"method.samples": 1}, "use method.samples=4"),
    Rule("task.data task.puzzles", {"task.path": given}, KEEP_ONE),
    Rule("task.split_seed", {"task.test_path": given}),
    Rule("task.split_seed", {"task.test_split": given, "task.held_out_split": given}),
    Rule("task.split_seed", {"task.data": "paper"}),
    Rule("task.kl_estimator task.kl_per", {"task.kl_coef": not_given}, "set task.kl_coef"),
    Rule("task.thinking_tag", {"task.strip_thinking": False}, "use task.strip_thinking=true"),
    Rule("task.system_prompt", {"task.chat": False}, "use task.chat=true"),
    Rule("task.system_prompt task.few_shot task.strip_thinking task.chat", OWN_MESSAGES),
    Rule("task.few_shot", {"prompt_search.few_shot": given}, KEEP_ONE),
    Rule("task.temperature", {"prompt_search.temperature": given}, KEEP_ONE),
    Rule(
        "task.temperature",
        {"method.temperature": anything, "held_out.temperature": given},
        "use method.temperature, and held_out.temperature for held-out completions",
    ),
    Rule("task.reward task.metric task.pattern task.tolerance", FUNCTIONS, KEEP_ONE),
    Rule("task.reward_floor", {"task.reward_functions": not_given}, "give rewards from Python"),
    Rule("task.pattern", {"task.reward": lambda rewards: "regex" not in rewards}, KEEP_ONE),
    Rule("task.tolerance", {"task.reward": lambda rewards: "numeric" not in rewards}, KEEP_ONE),
    Rule(
        "prompt_search.learning_rate prompt_search.min_probability",
        {"prompt_search.options": not_given},
        "give template, temperature or few_shot options",
    ),
    Rule(" ".join(f"strategy.{name}" for name in Nes.model_fields if name not in MEMBERS), VOTING),
    Rule("shaping retained", VOTING),
    Rule("shaping", SAMPLES),
    Rule(" ".join(f"strategy.{name}" for name in Nes.model_fields if name not in STEPS), SAMPLES),
    Rule("strategy.sigma", {"method.sigmas": given}, KEEP_ONE),
    Rule("strategy.baseline", GRADIENT),
    Rule("strategy.sigma space.rank", SAMPLING),
)
"""A setting that was given, and is not at its default, would have no effect."""

IMPOSSIBLE = (
    # Members that cannot be compared, and updates that are lost or overshoot.
    Rule(
        "strategy.population",
        {"strategy.antithetic": True, ITSELF: lambda number: number % 2},
        "pairs need an even one: add 1, or use strategy.antithetic=false",
    ),
    Rule(
        "strategy.population",
        {"strategy.baseline.kind": other_than("running"), ITSELF: 1},
        "one member has no other to compare with: use 2, or baseline=running",
    ),
    Rule("strategy.learning_rate", {"strategy.population": 1, **MEASURED}, NUMBER),
    Rule("batch_size", {**MEASURED, "method.trains_center": True, ITSELF: 1}, "use 2 or more"),
    Rule(
        SIGMAS, {ITSELF: above(LARGEST_SIGMA)}, "products would overflow: use less, such as 0.005"
    ),
    Rule(SIGMAS, {ITSELF: 0}, "members would equal the center: use a number above 0"),
    Rule("strategy.learning_rate.end", {"strategy.learning_rate.start": 0, ITSELF: 0}, NUMBER),
    Rule(
        "strategy.optimizer.weight_decay",
        {"strategy.learning_rate": anything, "strategy.decays_in_fp32": False},
        "fp32 rounds their product away below 3e-8, and above 1 theta would overshoot",
    ),
    # Two rules for one number.
    Rule("strategy.optimizer.kind", {**MEASURED, ITSELF: other_than("sgd")}, f"{NUMBER}, or sgd"),
    Rule("strategy.optimizer.momentum", {**MEASURED, ITSELF: above(0.0)}, NUMBER),
    Rule("strategy.zero_signal.kind", {"strategy.sigma.kind": "auto", ITSELF: "grow"}, "drop it"),
    Rule("strategy.baseline.kind", {"shaping.kind": other_than("raw"), **RUNNING}, "use raw"),
    # Members that cannot move.
    Rule("space.init_scale_a", {"space.init_scale_b": 0, ITSELF: 0}),
    Rule("space.init_scale_a", {"space.freeze_a": True, ITSELF: 0}),
    Rule(
        "strategy.kind",
        {"space.kind": anything, "space.has_coordinates": False, "strategy.has_coordinates": True},
        "its members have no coordinates: use space.kind=subspace, singular or lora, or full with "
        "few tensors (space.include)",
    ),
    # What engines and fleets cannot do.
    Rule("fleet.engines", {"engine.base_url": given, ITSELF: other_than(1)}, "one server: use 1"),
    Rule(
        "task.kl_coef", {**SERVED, ITSELF: given}, "drop it; `germline eval RUN --kl` measures it"
    ),
    Rule("task.kl_coef", {"fleet.kind": "ray", ITSELF: given}, "use fleet.kind=local, or drop it"),
    # What methods cannot do.
    Rule("prompt_search", {"strategy.kind": other_than("nes"), **OPTIONS}, "use strategy.kind=nes"),
    Rule("prompt_search", {**NO_OPTIONS, **OPTIONS}, "use method.kind=es, or drop the options"),
    Rule("strategy.kind", {**OF_SEEDS, ITSELF: other_than("nes")}, "use strategy.kind=nes"),
    Rule("task.lambda_lr", {**OF_SEEDS, "task.adapts": True}, "set it to 0, and safe_first=null"),
    Rule("strategy.sigma.kind", {"method.kind": "randopt", ITSELF: other_than("auto")}, NUMBER),
    Rule(
        "strategy.sigma.kind",
        {**SCORING, ITSELF: lambda kind: kind in ("plateau", "success", "natural")},
        "give a number or auto",
    ),
    Rule("fleet.quorum", {**SCORING, ITSELF: other_than(1)}, "all scores are needed: drop it"),
    Rule("strategy.sigma.kind", {**GRADIENT, ITSELF: "natural"}, "use another schedule"),
    Rule("strategy.learning_rate", {**GRADIENT, **MEASURED}, NUMBER),
    Rule(
        "space.kind",
        {**GRADIENT, "method.trains_adapters": False, ITSELF: other_than("full", "low_rank")},
        "use low_rank",
    ),
    Rule("space.kind", {**GRADIENT, ITSELF: other_than("full", "low_rank", "lora")}, "use full"),
    Rule("engine.kind", {**GRADIENT, ITSELF: other_than("inprocess")}, "use inprocess"),
    Rule("fleet.kind", {**GRADIENT, ITSELF: other_than("local")}, "use local"),
    Rule("fleet.engines", {**GRADIENT, ITSELF: other_than(1)}, "one model trains: use 1"),
    Rule("task.temperature", {**SAMPLING, ITSELF: 0}, "all texts would be equal: use 1"),
    Rule("task.temperature", {**SEVERAL, ITSELF: 0}, "all samples would be equal: use 1"),
    Rule("method.samples", {"task.adapts": True, ITSELF: above(1)}, "use 1"),
)
"""Combinations that cannot run, whoever gave them."""


def check_rules(config: Config, recorded: Config | None = None) -> None:
    """Refuse a setting that would have no effect, and a combination that cannot run.

    Args:
        config: what is asked for.
        recorded: the config of the run that it continues or repeats; a setting that is equal there
            may have no effect.
    """
    for verb, rules in (("would be ignored", IGNORED), ("cannot be used", IMPOSSIBLE)):
        for rule in rules:
            for setting in rule.settings.split():
                asked = rules is IMPOSSIBLE or _is_asked_for(config, setting, recorded)
                if asked and _holds(config, rule, setting):
                    cause = next(iter(rule.beside))
                    beside = f" with {cause}={_shown(_value(config, cause))}" if cause else ""
                    remedy = rule.remedy
                    if rules is IGNORED:  # A config that is shipped may have it.
                        remedy += f", or reset it: {setting}={_shown(_default(config, setting))}"
                    raise GermlineError(
                        f"config: {setting}={_shown(_value(config, setting))} "
                        f"{verb}{beside}: {remedy}"
                    )


def _holds(config: Config, rule: Rule, setting: str) -> bool:
    for name, wanted in rule.beside.items():
        value = _value(config, name or setting)
        if value is ... or not (wanted(value) if callable(wanted) else value == wanted):
            return False
    return True


def _is_asked_for(config: Config, setting: str, recorded: Config | None) -> bool:
    """Whether a setting differs from its default and from that of the recorded run."""
    default = _default(config, setting)
    known = ... if recorded is None else _value(recorded, setting)
    return default is not ... and _value(config, setting) not in (default, known)


def _default(config: Config, setting: str) -> Any:
    """Return the default of a setting; `...` where its section has none of that name."""
    path, _, name = setting.rpartition(".")
    section = _value(config, path) if path else config
    fields = type(section).model_fields if isinstance(section, Section) else {}
    return fields[name].get_default(call_default_factory=True) if name in fields else ...


def _value(config: Config, setting: str) -> Any:
    """Return a setting or property, and `...` where the config has none of that name."""
    value: Any = config
    for name in setting.split("."):
        value = getattr(value, name, ...)
    return value


def _shown(value: object) -> str:
    if isinstance(value, Section):
        return str(getattr(value, "kind", ", ".join(value.changed())))
    if isinstance(value, Mapping) and any(isinstance(one, Section) for one in value.values()):
        return ", ".join(value)
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
