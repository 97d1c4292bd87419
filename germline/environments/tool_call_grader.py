"""The grader with which `check task` tries tools: an episode is one call, without a model."""

import json
from dataclasses import dataclass

from germline.environments.adapters import adapt
from germline.environments.close_environment import close_environment
from germline.environments.grader import EnvironmentGrader
from germline.environments.step_result import shown
from germline.episode_types import Transcript
from germline.example import Example
from germline.graders.event_loop import await_result
from germline.graders.reward_functions import exception_text
from germline.graders.worker_messages import CAUSED_BY_CODE

RETURNED, RAISED = "returned ", "raised "
"""Beginnings of what a call came to."""


@dataclass(frozen=True)
class ToolCallGrader:
    """Makes one call in an episode, and answers with what the tool returned or raised.

    The reply of the transcript is the call, as a JSON list of the name and the arguments.

    Attributes:
        episodes: the grader of the environment's episodes.
    """

    episodes: EnvironmentGrader

    def __call__(self, transcript: Transcript, example: Example) -> str:
        """Return what the call came to; a reset that fails raises."""
        name, arguments = json.loads(transcript.replies[0])
        adapter = adapt(self.episodes.factory())
        adapter.reset(dict(example.facts), transcript.seed)
        tool = getattr(adapter.environment, name)
        try:
            return f"{RETURNED}{shown(await_result(tool(**arguments)))}"
        except MemoryError:
            raise
        except CAUSED_BY_CODE as error:
            return f"{RAISED}{exception_text(tool, error)}"
        finally:
            close_environment(adapter)
