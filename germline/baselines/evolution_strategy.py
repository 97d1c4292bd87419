"""The method `es`: the strategy learns theta, and prompt options if some are given."""

from germline.baselines.method import Method
from germline.fleet.prompt_search_fleet import PromptSearchFleet
from germline.protocols import Fleet, Strategy, Task
from germline.strategies.categorical import CategoricalSearch
from germline.tasks.prompt_format import PromptFormatter


class EvolutionStrategyMethod(Method):
    """Members, update and result are those of `strategy` and `prompt_search`."""

    def check_task(self, task: Task) -> None:
        """Refuse a task with fewer solved examples than `prompt_search.few_shot` needs.

        Raises:
            GermlineError: it has fewer.
        """
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
