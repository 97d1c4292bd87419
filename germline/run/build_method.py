"""What stands around a strategy and a fleet: a search over discrete settings, or another method."""

from dataclasses import dataclass
from functools import partial

from germline.baselines.randopt import Ensemble, RandomSearch, VotingFleet
from germline.config import Config, EsSampleGradientDescent, RandOpt, ShapingConfig
from germline.fleet import LocalFleet
from germline.fleet.prompt_search_fleet import PromptSearchFleet
from germline.protocols import Fleet, Strategy, Task
from germline.shaping import utilities
from germline.strategies.categorical import CategoricalSearch
from germline.tasks.prompt_format import PromptFormatter


@dataclass(frozen=True)
class MethodParts:
    """What the loop is given.

    Attributes:
        ensemble: the members that vote for the center, where a method keeps some.
    """

    strategy: Strategy
    fleet: Fleet
    ensemble: Ensemble | None = None


def make_method(config: Config, strategy: Strategy, fleet: Fleet, task: Task) -> MethodParts:
    """Put what a config asks for around a strategy and a fleet.

    Raises:
        GermlineError: the task has not what is to be chosen from.
    """
    if isinstance(config.method, RandOpt):
        ensemble = Ensemble(config.method.ensemble_size)
        return MethodParts(
            RandomSearch(config.method, strategy, ensemble),
            VotingFleet(fleet, ensemble, task),
            ensemble,
        )
    if isinstance(config.method, EsSampleGradientDescent):
        return MethodParts(*_following(config.method, config.shaping, strategy, fleet))
    if config.prompt_search.options:
        choosing = CategoricalSearch(config.prompt_search, strategy, config.seed)
        most = max(config.prompt_search.few_shot, default=0)
        presenter = PromptFormatter(task.examples("train"), config.seed, most)
        return MethodParts(
            choosing, PromptSearchFleet(fleet, presenter.format_prompt, choosing.likeliest)
        )
    return MethodParts(strategy, fleet)


def _following(
    method: EsSampleGradientDescent, shaping: ShapingConfig, strategy: Strategy, fleet: Fleet
) -> tuple[Strategy, Fleet]:
    # Imported here, because it brings the engine and with it torch.
    from germline.baselines.es_sample_gd import GradientFleet, SamplingStrategy

    # One engine in this process: `config.methods` refuses others.
    assert isinstance(fleet, LocalFleet)
    return SamplingStrategy(method, strategy), GradientFleet(
        fleet, method, partial(utilities, shaping)
    )
