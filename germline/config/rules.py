"""Settings that have no effect, or cannot work, beside other settings of a config.

A rule names settings and the values of others beside which they are refused. Rules hold for what a
person asks for. They are not applied when a run is opened, whose settings were asked for once: a
later version may have other defaults and more rules.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from germline.config.base import Section
from germline.config.errors import PlaceOf
from germline.config.run_config import Config
from germline.config.schedules import CosineSchedule
from germline.config.spaces import LowRank
from germline.config.strategies import Nes
from germline.types import GermlineError


@dataclass(frozen=True)
class Rule:
    """A combination of settings that is refused.

    Attributes:
        settings: the refused settings, as overrides spell them.
        beside: other settings (or properties of sections) -> a value, or a function of the value
            that returns whether the rule holds; all have to hold, and the first one is shown.
        remedy: what to do instead.
    """

    settings: str
    beside: Mapping[str, object]
    remedy: str = "drop it"


def anything(_: object) -> bool:
    """Whether there is such a setting."""
    return True


def given(value: object) -> bool:
    """Whether a setting has a value."""
    return value is not None and value != () and value != {}


def not_given(value: object) -> bool:
    """Whether a setting has no value."""
    return not given(value)


def other_than(*values: object) -> Callable[[object], bool]:
    """Return whether a setting has none of these values."""
    return lambda value: value not in values


def without(name: str) -> Callable[[Collection[str]], bool]:
    """Return whether a setting does not hold a name."""
    return lambda value: name not in value


MEMBERS = ("kind", "population", "antithetic", "sigma", "sigma_unit")
"""Settings of nes that determine which members are evaluated; the others determine the update."""

KEEP_ONE = "drop one of them"
SAMPLING = {"method.exploration": "temperature"}
VOTING = {"method.kind": anything, "method.trains_center": False}
FUNCTIONS = {"task.reward_functions": given}

IGNORED = (
    Rule("model", {"engine.kind": anything, "engine.has_own_model": True}, KEEP_ONE),
    Rule(
        "engine.python engine.device engine.threads engine.options engine.startup_timeout_s",
        {"engine.base_url": given},
        "give it to the server when you start it, and drop it here",
    ),
    Rule("fleet.quorum", {"fleet.engines": 1, "fleet.kind": "local"}),
    Rule("fleet.devices", {"engine.kind": other_than("inprocess")}, "use CUDA_VISIBLE_DEVICES"),
    Rule("engine.device", {"fleet.devices": other_than("auto")}, KEEP_ONE),
    Rule("space.init_scale_a space.init_scale_b", {"space.init_adapter": given}, KEEP_ONE),
    Rule(
        "strategy.optimizer.decay_to",
        {"strategy.optimizer.weight_decay": 0},
        "set weight_decay, such as 0.1, or drop it",
    ),
    Rule(
        "strategy.baseline",
        {"strategy.antithetic": True},
        "use strategy.antithetic=false, or drop it",
    ),
    Rule("task.data task.puzzles", {"task.path": given}, KEEP_ONE),
    Rule("task.split_seed", {"task.test_path": given, "task.kind": other_than("safe_alignment")}),
    Rule(
        "task.split_seed",
        {
            "task.test_split": given,
            "task.held_out_split": given,
            "task.kind": other_than("safe_alignment"),
        },
    ),
    Rule("task.split_seed", {"task.data": "paper"}),
    Rule(
        "task.kl_estimator task.kl_per",
        {"task.kl_coef": not_given},
        "set task.kl_coef, such as 0.05, or drop it",
    ),
    Rule("task.thinking_tag", {"task.strip_thinking": False}, "set strip_thinking, or drop it"),
    Rule("task.system_prompt", {"task.chat": False}, "use task.chat=true, or drop it"),
    Rule("task.few_shot", {"prompt_search.few_shot": given}, "list it in prompt_search.few_shot"),
    Rule(
        "task.temperature",
        {"prompt_search.temperature": given},
        "list it in prompt_search.temperature",
    ),
    Rule("task.reward task.metric task.pattern task.tolerance", FUNCTIONS, "leave out reward="),
    Rule(
        "task.reward_floor",
        {"task.reward_functions": not_given},
        "call germline.train(config, reward=...), or drop it",
    ),
    Rule("task.pattern", {"task.reward": without("regex")}, KEEP_ONE),
    Rule("task.tolerance", {"task.reward": without("numeric")}, KEEP_ONE),
    Rule(
        "prompt_search.learning_rate prompt_search.min_probability",
        {"prompt_search.options": not_given},
        "give template, temperature or few_shot options, or drop it",
    ),
    Rule(" ".join(f"strategy.{name}" for name in Nes.model_fields if name not in MEMBERS), VOTING),
    Rule("shaping", VOTING),
    Rule("strategy.sigma", {"method.sigmas": given}, KEEP_ONE),
    Rule("strategy.baseline", {"method.kind": "es_sample_gd"}),
    Rule("strategy.noise_reuse strategy.sigma space.rank method.clip", SAMPLING),
)
"""A setting that was given, and is not at its default, would have no effect."""

IMPOSSIBLE = (
    Rule(
        "fleet.engines",
        {"engine.base_url": given, "fleet.engines": other_than(1)},
        "one server serves one engine: use fleet.engines=1, or engines that start their own",
    ),
    Rule(
        "strategy.baseline",
        {"shaping.kind": other_than("raw"), "strategy.baseline.kind": "running"},
        "use shaping=raw, with a learning rate for the unit of the reward",
    ),
    Rule(
        "strategy.baseline",
        {"shaping.elite": other_than(1), "strategy.baseline.kind": "running"},
        "use shaping.elite=1",
    ),
    Rule(
        "prompt_search",
        {"strategy.kind": other_than("nes"), "prompt_search.options": given},
        "use strategy.kind=nes, or drop the options",
    ),
    Rule(
        "task.kl_coef",
        {"engine.kind": anything, "engine.is_served": True, "task.kl_coef": given},
        "the start model is loaded beside the trained one: use engine=inprocess, or drop kl_coef "
        "and measure the divergence with `germline eval RUN --kl`",
    ),
    Rule(
        "task.kl_coef",
        {"fleet.kind": "ray", "task.kl_coef": given},
        "the start model is loaded in the training process: use fleet.kind=local, or drop kl_coef",
    ),
    Rule(
        "strategy.kind",
        {
            "space.kind": anything,
            "space": lambda space: isinstance(space, LowRank),
            "strategy.has_coordinates": True,
        },
        "such members are products of random vectors without coordinates: use space.kind="
        "subspace, singular or lora, or full with few tensors (space.include)",
    ),
)
"""Combinations that cannot run, whoever gave them."""


def check_rules(
    config: Config, recorded: Config | None = None, place_of: PlaceOf = lambda _: ""
) -> None:
    """Refuse a setting that would have no effect, and a combination that cannot run.

    Args:
        config: what is asked for.
        recorded: the config of the run it continues or repeats, whose settings are not judged.
        place_of: returns where a setting was given.

    Raises:
        GermlineError: names the setting, the other one and a remedy.
    """
    for rule in IGNORED:
        for setting in rule.settings.split():
            if _is_asked_for(config, setting, recorded) and _holds(config, rule):
                raise _refusal(config, rule, setting, "would be ignored", place_of)
    for rule in IMPOSSIBLE:
        if _holds(config, rule):
            raise _refusal(config, rule, rule.settings, "cannot be used", place_of)
    for name in ("sigma", "learning_rate"):
        schedule, last = getattr(config.strategy, name, None), config.generations - 2
        if isinstance(schedule, CosineSchedule) and 0 < schedule.warmup > last:
            setting = f"strategy.{name}.warmup"
            raise GermlineError(
                f"config: {place_of(setting)}{setting}={schedule.warmup} cannot be used with "
                f"generations={config.generations}: use warmup={max(0, last)} or less"
            )
    try:
        config.method.check(config)
    except ValueError as error:
        raise GermlineError(f"config: {error}") from None


def _refusal(
    config: Config, rule: Rule, setting: str, verb: str, place_of: PlaceOf
) -> GermlineError:
    cause = next(iter(rule.beside))
    return GermlineError(
        f"config: {place_of(setting)}{setting}={_shown(_value(config, setting))} {verb} with "
        f"{cause}={_shown(_value(config, cause))}: {rule.remedy}"
    )


def _holds(config: Config, rule: Rule) -> bool:
    for setting, wanted in rule.beside.items():
        value = _value(config, setting)
        if value is ... or not (wanted(value) if callable(wanted) else value == wanted):
            return False
    return True


def _is_asked_for(config: Config, setting: str, recorded: Config | None) -> bool:
    """Whether a setting differs from its default and from that of the recorded run."""
    path, _, name = setting.rpartition(".")
    section = _value(config, path) if path else config
    field = getattr(type(section), "model_fields", {}).get(name)
    if field is None:
        return False
    value = getattr(section, name)
    known = ... if recorded is None else _value(recorded, setting)
    return value not in (field.get_default(call_default_factory=True), known)


def _value(config: Config, setting: str) -> Any:
    """Return a setting or property, and `...` where the config has none of that name."""
    value: Any = config
    for name in setting.split("."):
        value = getattr(value, name, ...)
    return value


def _shown(value: object) -> str:
    """Spell a value as an override does."""
    if isinstance(value, Section):
        return str(getattr(value, "kind", ", ".join(value.changed())))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)
