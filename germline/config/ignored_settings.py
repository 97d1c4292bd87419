"""Settings that have no effect because of other settings, and are rejected for that reason.

A row of the table names a setting, the condition in which it has no effect, and the remedy. A
setting at its default is always accepted.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from germline.config.engines import InProcess
from germline.config.fleets import Local
from germline.config.methods import EsSampleGradientDescent, RandOpt
from germline.config.safe_alignment import SafeAlignment
from germline.config.sglang import Sglang
from germline.config.strategies import Nes

if TYPE_CHECKING:
    from germline.config.run_config import Config

DROP = "drop it"
DROP_ONE = "drop one of them"


@dataclass(frozen=True)
class Rule:
    """A condition in which a setting has no effect.

    Attributes:
        setting: the setting, as an override spells it.
        applies: returns whether the condition holds for a config.
        condition: the condition in words; `{config. ...}` is replaced by a value of the config.
        remedy: what the user can do instead.
    """

    setting: str
    applies: Callable[["Config"], bool]
    condition: str
    remedy: str = DROP


def _rules(section: str, names: str, *rule: Any) -> tuple[Rule, ...]:
    return tuple(Rule(f"{section}.{name}", *rule) for name in names.split())


def _samples_center(config: "Config") -> bool:
    method = config.method
    return isinstance(method, EsSampleGradientDescent) and method.exploration == "temperature"


def _votes(config: "Config") -> bool:
    return isinstance(config.method, RandOpt)


def _has_held_out(name: str) -> Callable[["Config"], bool]:
    """Return whether a setting names the held-out rows, and `split_seed` orders no rows either."""
    return lambda config: (
        getattr(config.task, name, None) is not None and not isinstance(config.task, SafeAlignment)
    )


def _lacks_reward(name: str) -> Callable[["Config"], bool]:
    return lambda config: name not in getattr(config.task, "reward", ())


SERVER = "with engine.base_url={config.engine.base_url}, whose server has a setting of its own"
VOTING = "by method.kind=randopt, as its members vote and theta is never updated"
SAMPLING = (
    "by method.kind=es_sample_gd with method.exploration=temperature, which perturbs no member"
)
GIVE_TO_SERVER = "give it to the server when you start it, and drop it here"

MEMBERS = ("kind", "population", "antithetic", "sigma", "sigma_unit")
"""Settings of nes that determine which members are evaluated."""

LEARNING = tuple(name for name in Nes.model_fields if name not in MEMBERS)
"""Settings of nes that determine the update."""

RULES: tuple[Rule, ...] = (
    Rule(
        "model",
        lambda config: config.engine.has_own_model,
        "by engine.kind={config.engine.kind}, which has a model of its own",
        DROP_ONE,
    ),
    *_rules(
        "engine",
        "python device threads options startup_timeout_s",
        lambda config: isinstance(config.engine, Sglang) and config.engine.base_url is not None,
        SERVER,
        GIVE_TO_SERVER,
    ),
    *_rules(
        "fleet",
        "quorum",
        lambda config: isinstance(config.fleet, Local) and config.fleet.engines == 1,
        "with fleet.engines=1, as there is no other engine",
    ),
    Rule(
        "fleet.devices",
        lambda config: not isinstance(config.engine, InProcess),
        "by engine.kind={config.engine.kind}, which takes the devices that CUDA_VISIBLE_DEVICES "
        "shows, if any",
    ),
    Rule(
        "engine.device",
        lambda config: getattr(config.fleet, "devices", "auto") != "auto",
        "with fleet.devices={config.fleet.devices}, which names a device for each engine",
        DROP_ONE,
    ),
    *_rules(
        "space",
        "init_scale_a init_scale_b",
        lambda config: getattr(config.space, "init_adapter", None) is not None,
        "with space.init_adapter={config.space.init_adapter}, which is not drawn at random",
        DROP_ONE,
    ),
    Rule(
        "strategy.optimizer.decay_to",
        lambda config: config.optimizer.weight_decay == 0,
        "with strategy.optimizer.weight_decay=0",
        "set weight_decay, such as 0.1, or drop it",
    ),
    Rule(
        "strategy.baseline",
        lambda config: isinstance(config.strategy, Nes) and config.strategy.antithetic,
        "with strategy.antithetic=true, as the members of a pair are compared with each other",
        "use strategy.antithetic=false, or drop it",
    ),
    Rule(
        "task.data",
        lambda config: getattr(config.task, "path", None) is not None,
        "with task.path={config.task.path}",
        DROP_ONE,
    ),
    Rule(
        "task.puzzles",
        lambda config: getattr(config.task, "path", None) is not None,
        "with task.path={config.task.path}",
        DROP_ONE,
    ),
    Rule(
        "task.split_seed",
        _has_held_out("test_path"),
        "with task.test_path={config.task.test_path}, which gives the held-out examples",
    ),
    Rule(
        "task.split_seed",
        lambda config: getattr(config.task, "data", None) == "paper",
        "with task.data=paper, which gives the held-out examples",
    ),
    Rule(
        "task.split_seed",
        _has_held_out("test_split"),
        "with task.test_split={config.task.test_split}, which gives the held-out examples",
    ),
    *_rules(
        "task",
        "kl_estimator kl_per",
        lambda config: config.task.kl_coef is None,
        "without task.kl_coef",
        "set task.kl_coef, such as 0.05, or drop it",
    ),
    Rule(
        "task.thinking_tag",
        lambda config: not config.task.strip_thinking,
        "without task.strip_thinking=true",
        "set it, or drop thinking_tag",
    ),
    Rule(
        "task.system_prompt",
        lambda config: config.task.chat is False,
        "with task.chat=false, as only a chat has a system message",
        "use task.chat=true, or drop it",
    ),
    Rule(
        "task.few_shot",
        lambda config: bool(config.prompt_search.few_shot),
        "with prompt_search.few_shot={config.prompt_search.few_shot}",
        "drop it, and list it in prompt_search.few_shot to search it",
    ),
    *_rules(
        "task",
        "reward metric pattern tolerance",
        lambda config: bool(config.task.reward_functions),
        "with reward functions given from Python ({config.task.reward_functions})",
        "drop it, or leave out reward=",
    ),
    Rule(
        "task.reward_floor",
        lambda config: not config.task.reward_functions,
        "without reward functions given from Python",
        "call germline.train(config, reward=...), or drop it",
    ),
    Rule("task.pattern", _lacks_reward("regex"), "without task.reward=regex", DROP_ONE),
    Rule("task.tolerance", _lacks_reward("numeric"), "without task.reward=numeric", DROP_ONE),
    *_rules(
        "prompt_search",
        "learning_rate min_probability",
        lambda config: not config.prompt_search.options,
        "without options to search",
        "give template, temperature or few_shot options, or drop it",
    ),
    Rule(
        "task.temperature",
        lambda config: bool(config.prompt_search.temperature),
        "with prompt_search.temperature={config.prompt_search.temperature}",
        "drop it, and list it in prompt_search.temperature to search it",
    ),
    *_rules("strategy", " ".join(LEARNING), _votes, VOTING),
    Rule("shaping", _votes, VOTING),
    Rule(
        "strategy.sigma",
        lambda config: isinstance(config.method, RandOpt) and config.method.sigmas is not None,
        "with method.sigmas={config.method.sigmas}",
        DROP_ONE,
    ),
    Rule(
        "strategy.baseline",
        lambda config: isinstance(config.method, EsSampleGradientDescent),
        "by method.kind=es_sample_gd, which compares completions with each other",
    ),
    *_rules("strategy", "noise_reuse sigma", _samples_center, SAMPLING),
    Rule("space.rank", _samples_center, SAMPLING),
    Rule(
        "method.clip",
        _samples_center,
        "with method.exploration=temperature, where the center itself writes the completions",
    ),
)


def check_ignored_settings(config: "Config") -> None:
    """Refuse a setting that would be ignored.

    Raises:
        ValueError: a setting that is not at its default has no effect; the message names it, the
            condition and the remedy.
    """
    for rule in RULES:
        spelled = _changed(config, rule.setting)
        if spelled and rule.applies(config):
            condition = rule.condition.format(config=config)
            remedy = rule.remedy + (_default(config, rule.setting) if rule.remedy == DROP else "")
            raise ValueError(f"{spelled} would be ignored {condition}: {remedy}")


def _owner(config: "Config", setting: str) -> tuple[Any, str]:
    """Return the section that holds a setting, None where the config has no such section."""
    *path, name = setting.split(".")
    section: Any = config
    for part in path:
        section = getattr(section, part, None)
    return section, name


def _changed(config: "Config", setting: str) -> str:
    """Spell a setting with its value, or return an empty text where it is absent or at default."""
    section, name = _owner(config, setting)
    if name not in getattr(type(section), "model_fields", {}) or not section.changed(name):
        return ""
    value = getattr(section, name)
    default = type(section).model_fields[name].get_default(call_default_factory=True)
    kind = getattr(value, "kind", None)
    if kind is not None:
        return setting if kind == getattr(default, "kind", None) else f"{setting}.kind={kind}"
    if isinstance(value, bool):
        return f"{setting}={str(value).lower()}"
    return f"{setting}={value:g}" if isinstance(value, float) else f"{setting}={value}"


def _default(config: "Config", setting: str) -> str:
    """Return the remedy that names the default, for config files that must keep a value."""
    section, name = _owner(config, setting)
    default = type(section).model_fields[name].get_default(call_default_factory=True)
    default = getattr(default, "kind", default)
    plain = isinstance(default, bool | int | float | str)
    return f", or set it to its default, {default}" if plain else ""
