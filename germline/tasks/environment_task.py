"""A task of episodes in an environment: what built-in environments and those of files share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from germline.config import EpisodeSettings
from germline.environments.grader import RubricGrader, SingleReplyGrader
from germline.protocols import EpisodeGrader, Grader
from germline.types import Example, Split


class EpisodeLimits(NamedTuple):
    """Defaults of a task, which the config overrides.

    Attributes:
        max_turns: of the model in an episode.
        max_new_tokens: of a turn.
        stop: strings that end a turn.
    """

    max_turns: int
    max_new_tokens: int
    stop: tuple[str, ...] = ()


class EnvironmentTask:
    """Rows, and the environment in which the model plays them.

    Args:
        config: the section, which overrides the defaults below.
        grader: plays the environment.
        examples: by split; their facts are the rows that `reset` gets.
        metric: the part of the reward that held-out scores report.
        limits: defaults of the limits of an episode.
        tools: description of the tools, which the model reads before the prompt.
    """

    def __init__(
        self,
        config: EpisodeSettings,
        grader: RubricGrader,
        examples: Mapping[Split, Sequence[Example]],
        *,
        metric: str,
        limits: EpisodeLimits,
        tools: str = "",
    ) -> None:
        self.name = config.title
        self.has_tools = bool(tools)
        self.episode_grader: EpisodeGrader = grader
        self.grader: Grader = SingleReplyGrader(grader)
        self.rubric: Mapping[str, float] = grader.rubric.weights
        self.floor: Mapping[str, float] = grader.rubric.floors
        self.metric = metric
        self.metric_higher_is_better = self.rubric[metric] >= 0
        self.max_turns = config.max_turns or limits.max_turns
        self.max_new_tokens = config.max_new_tokens or limits.max_new_tokens
        self.stop = limits.stop if config.stop is None else config.stop
        self._examples: dict[Split, tuple[Example, ...]] = {
            split: tuple(_with_tools(row, tools) for row in rows)
            for split, rows in examples.items()
        }

    def examples(self, split: Split) -> Sequence[Example]:
        """Return the examples of a split, always the same ones in the same order."""
        return self._examples[split]


def _with_tools(example: Example, tools: str) -> Example:
    """Describe the tools in the system message; without a chat, every message is in the prompt."""
    context = example.context
    if tools:
        system = [text for role, text in context if role == "system"]
        rest = [(role, text) for role, text in context if role != "system"]
        context = (("system", "\n\n".join([*system, tools])), *rest)
    if example.chat:
        return replace(example, context=context)
    texts = [text for _, text in context]
    return replace(example, prompt="\n\n".join([*texts, example.prompt]), context=())
