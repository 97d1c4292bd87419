"""The method of a run: how it wraps strategy and fleet, and which weights it results in; `es`."""

from collections.abc import Sequence
from typing import Any

from germline import registry
from germline.config import Config
from germline.fleet.prompt_search_fleet import PromptSearchFleet
from germline.protocols import Fleet, Strategy, Task
from germline.signal_metrics import is_zero_signal
from germline.strategies.categorical import CategoricalSearch
from germline.tasks.prompt_format import PromptFormatter
from germline.types import MeanUpdate, SeedPerturbation, Update


class Method:
    """Base class of methods: the strategy unchanged, and theta as the result.

    `config.method` has the facts about a method that need no objects, such as `trains_center`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config

    def check_task(self, task: Task) -> None:
        """Refuse a task that the method cannot train on, before a model is loaded.

        Raises:
            GermlineError: the task lacks something that the method needs.
        """

    def wrap_strategy(self, strategy: Strategy) -> Strategy:
        """Return the strategy of the run, which wraps the one that proposes members."""
        return strategy

    def wrap_fleet(self, fleet: Fleet, strategy: Strategy, task: Task) -> Fleet:
        """Return the fleet of the run, which wraps the fleet of engines.

        Args:
            fleet: the fleet of engines.
            strategy: the strategy that `wrap_strategy` returned.
            task: the task of the run.
        """
        return fleet

    def batch_generation(self, generation: int) -> int:
        """Return the generation whose batch of examples this generation uses."""
        return generation

    def is_zero_signal(self, update: Update | MeanUpdate) -> bool:
        """Say whether the generation of an update has no signal."""
        return is_zero_signal(update)

    def voting_members(self) -> Sequence[SeedPerturbation]:
        """Return the members that answer by vote, best first; none where the center answers."""
        return ()

    def ensemble_rows(self) -> Sequence[dict[str, Any]]:
        """Return the rows of `ensemble.json`, one per voting member."""
        return ()

    def result_update(self) -> Update | None:
        """Return the update from theta to the weights to export; None: theta itself.

        Raises:
            GermlineError: the run has no result yet.
        """
        return None


class EvolutionStrategyMethod(Method):
    """The method `es`: the strategy learns theta, and prompt options if some are given."""

    def check_task(self, task: Task) -> None:
        """Refuse a task with fewer solved examples than `prompt_search.few_shot` needs.

        Raises:
            GermlineError: it has fewer.
        """
        if self.config.prompt_search.few_shot:
            self._formatter(task)

    def wrap_strategy(self, strategy: Strategy) -> Strategy:
        """Return the strategy, wrapped in a search of prompt options if some are given."""
        search = self.config.prompt_search
        return CategoricalSearch(search, strategy, self.config.seed) if search.options else strategy

    def wrap_fleet(self, fleet: Fleet, strategy: Strategy, task: Task) -> Fleet:
        """Return the fleet, wrapped in one that applies the members' prompt options."""
        if not isinstance(strategy, CategoricalSearch):
            return fleet
        return PromptSearchFleet(fleet, self._formatter(task).format_prompt, strategy.likeliest)

    def _formatter(self, task: Task) -> PromptFormatter:
        most = max(self.config.prompt_search.few_shot, default=0)
        return PromptFormatter(task.examples("train"), self.config.seed, most)


def make_method(config: Config) -> Method:
    """Construct the method a config names."""
    method: Method = registry.create("method", config, kind=config.method.kind)
    return method
