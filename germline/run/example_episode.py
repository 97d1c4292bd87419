"""One episode of an environment with replies that are known, for display by a check of the task."""

from dataclasses import dataclass

from germline.episode_types import Transcript, Turn
from germline.protocols import GraderProtocol
from germline.types import Example, Grade


@dataclass(frozen=True)
class ExampleEpisode:
    """An episode in which every reply of the model is the same.

    Attributes:
        reply: the gold answer of the example, or an empty text where it has none.
        begin: the first message of the environment, which follows the prompt.
        turns: replies, and the environment's messages to them.
        grade: the reward and its parts, or why the environment failed.
        is_cut: whether the limit of turns ended the episode.
    """

    reply: str
    begin: str
    turns: tuple[Turn, ...]
    grade: Grade
    is_cut: bool


def play_example(example: Example, max_turns: int, graders: GraderProtocol) -> ExampleEpisode:
    """Play an example with its gold answer as every reply, and seed 0.

    Raises:
        GermlineError: the environment is at fault.
    """

    def grade(replies: int, *, is_final: bool = False) -> Grade:
        asked = Transcript((example.answer,) * replies, seed=0, is_final=is_final)
        return graders.submit([asked], [example]).result()[0]

    state = grade(0)
    begin = state.observation or ""
    turns: list[Turn] = []
    while state.observation is not None:
        replies = len(turns) // 2 + 1
        turns.append(Turn("assistant", example.answer))
        state = grade(replies)
        if state.observation is not None and replies == max_turns:
            final = grade(replies, is_final=True)
            return ExampleEpisode(example.answer, begin, tuple(turns), final, is_cut=True)
        if state.observation is not None:
            turns.append(Turn("user", state.observation))
    return ExampleEpisode(example.answer, begin, tuple(turns), state, is_cut=False)
