"""What stands around a strategy and a fleet: a search over discrete settings, or another method."""

from dataclasses import dataclass
from functools import partial

from germline.baselines.randopt import Ensemble, RandomSearch, VotingFleet
from germline.config import Config, EsSampleGd, RandOpt, ShapingConfig
from germline.fleet import LocalFleet
from germline.fleet.choosing import ChoosingFleet
from germline.protocols import Fleet, Strategy, Task
from germline.shaping import utilities
from germline.strategies.choosing import Choosing
from germline.tasks.presenting import Presenter


@dataclass(frozen=True)
class Method:
    """What the loop is given.

    Attributes:
        ensemble: the members that vote for the centre, where a method keeps some.
    """

    strategy: Strategy
    fleet: Fleet
    ensemble: Ensemble | None = None


def make_method(config: Config, strategy: Strategy, fleet: Fleet, task: Task) -> Method:
    """Put what a config asks for around a strategy and a fleet.

    Raises:
        GermlineError: the task has not what is to be chosen from.
    """
    if isinstance(config.method, RandOpt):
        ensemble = Ensemble(config.method.keep)
        return Method(
            RandomSearch(config.method, strategy, ensemble),
            VotingFleet(fleet, ensemble, task),
            ensemble,
        )
    if isinstance(config.method, EsSampleGd):
        return Method(*_following(config.method, config.shaping, strategy, fleet))
    if config.choices.options:
        choosing = Choosing(config.choices, strategy, config.seed)
        most = max(config.choices.shots, default=0)
        presenter = Presenter(task.examples("train"), config.seed, most)
        return Method(choosing, ChoosingFleet(fleet, presenter.present, choosing.likeliest))
    return Method(strategy, fleet)


def _following(
    method: EsSampleGd, shaping: ShapingConfig, strategy: Strategy, fleet: Fleet
) -> tuple[Strategy, Fleet]:
    # Imported here, because it brings the engine and with it torch.
    from germline.baselines.es_sample_gd import GradientFleet, Sampling

    # One engine in this process: `config.methods` refuses others.
    assert isinstance(fleet, LocalFleet)
    return Sampling(method, strategy), GradientFleet(fleet, method, partial(utilities, shaping))
