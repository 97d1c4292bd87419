"""The task of an environment of verifiers: its tasks become prompts, split into train and test."""

from functools import partial

from germline.config import Verifiers
from germline.environments.episode import EpisodeRubric
from germline.environments.tools import schema_prompt
from germline.environments.verifiers_taskset import TOTAL, LoadedTaskset, VerifiersGrader
from germline.tasks.environment_task import MAX_TURNS, EnvironmentTask
from germline.tasks.splits import seeded_split
from germline.types import Example, GermlineError


class VerifiersTask(EnvironmentTask):
    """The tasks of a taskset, and the environment in which the model plays them.

    Environments write all messages and ask an endpoint for the model's replies. The reward is the
    one that verifiers computes; its parts and the metrics are reported.
    """

    asks_endpoint = True

    def __init__(self, config: Verifiers) -> None:
        max_turns = config.max_turns or MAX_TURNS
        taskset = LoadedTaskset(config.env, config.args, config.tasks, max_turns)
        parts = dict.fromkeys([*taskset.declared_parts(), *config.metrics], 0.0)
        weights = {TOTAL: 1.0, **{name: 0.0 for name in parts if name != TOTAL}}
        floors = {**dict.fromkeys(weights, 0.0), TOTAL: config.floor}
        rubric = EpisodeRubric(weights, floors)
        places = list(range(len(taskset.tasks)))
        keys = [task.hash for task in taskset.tasks]
        sides = seeded_split(places, keys, config.split_seed, f"task.env={config.env}")
        super().__init__(
            config,
            VerifiersGrader(taskset, rubric),
            self.by_split(sides, partial(_example, config, taskset)),
            max_turns=max_turns,
            max_new_tokens=512,
            tools=schema_prompt(taskset.tool_schemas()),
        )


def _example(config: Verifiers, taskset: LoadedTaskset, index: int, place: int) -> Example:
    *context, (role, prompt) = taskset.opening(place) or (("user", ""),)
    if role == "system":  # the environment speaks first, as the user
        context, prompt = [*context, (role, prompt)], ""
    elif role != "user":
        raise GermlineError(
            f"task.env={config.env}: the prompt of task {place} ends with a message of the role "
            f"{role!r}, and the model answers messages of the user"
        )
    return Example(index, prompt, "", config.sends_chats, {"task": place}, context=tuple(context))
