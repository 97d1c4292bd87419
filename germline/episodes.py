"""Play the episodes of a microbatch: the engine writes a turn, the environment answers, and so on.

The environment runs where completions are graded, in worker processes with time and memory limits.
It gets a `Transcript` of what the model has written so far, and returns its next message or the
reward. All members and examples step together, and all members meet the same environment seeds
(common random numbers). An episode ends when its environment ends it, at the limit of turns, or
when the model's context is full.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from germline.example import Ended, Transcript, Turn, joined
from germline.noise import hashed_number
from germline.protocols import Engine, EpisodePlayer, GraderProtocol
from germline.types import Completion, Decoding, Example, Grade, Perturbation, Rollout


@dataclass
class _Episode:
    """One episode while it is played."""

    example: Example
    seed: int
    turns: list[Turn] = field(default_factory=list)
    written: list[Completion] = field(default_factory=list)
    grade: Grade | None = None
    ended: Ended = "done"

    def transcript(self, *, is_final: bool) -> Transcript:
        """Return what the model has written so far."""
        return Transcript(tuple(one.text for one in self.written), self.seed, is_final)

    def end(self, grade: Grade, ended: Ended) -> None:
        """Note the grade, and why the episode ended."""
        self.grade, self.ended = grade, "failure" if grade.failure is not None else ended

    def rollout(self, member: int) -> Rollout:
        """Return the record of an episode that has ended."""
        assert self.grade is not None
        completion = joined([self.written] if self.written else [])
        turns = tuple(self.turns)
        return Rollout(member, self.example.index, completion, self.grade, turns, self.ended)


class _Batch:
    """The episodes of a microbatch while they are played."""

    def __init__(self, graders: GraderProtocol, max_turns: int) -> None:
        self.graders = graders
        self.max_turns = max_turns
        self.episodes: dict[tuple[int, int], _Episode] = {}

    def reply(
        self, places: Sequence[tuple[int, int]], completions: Sequence[Completion]
    ) -> list[str | None]:
        """Let the environments answer one turn of some episodes; None ends an episode."""
        episodes = [self.episodes[place] for place in places]
        for episode, completion in zip(episodes, completions, strict=True):
            if completion.finish != "context":
                episode.written.append(completion)
                episode.turns.append(Turn("assistant", completion.text, completion.tokens))
        full = [one.finish == "context" for one in completions]
        grades = self._graded(episodes, full)
        at_limit = [
            episode
            for episode, grade in zip(episodes, grades, strict=True)
            if grade.observation is not None and len(episode.written) >= self.max_turns
        ]
        # Only the environment knows whether the last turn ended the episode or the limit did.
        final = iter(self._graded(at_limit, [True] * len(at_limit)))
        messages: list[str | None] = []
        for episode, grade, is_full in zip(episodes, grades, full, strict=True):
            if grade.observation is None:
                episode.end(grade, "context" if is_full else "done")
                messages.append(None)
            elif len(episode.written) >= self.max_turns:
                episode.end(next(final), "max_turns")
                messages.append(None)
            else:
                episode.turns.append(Turn("user", grade.observation))
                messages.append(grade.observation)
        return messages

    def _graded(self, episodes: Sequence[_Episode], final: Sequence[bool]) -> list[Grade]:
        transcripts = [
            episode.transcript(is_final=is_final)
            for episode, is_final in zip(episodes, final, strict=True)
        ]
        return self.graders.submit(transcripts, [one.example for one in episodes]).result()


def play_episodes(
    engine: Engine,
    graders: GraderProtocol,
    members: Sequence[Perturbation | None],
    examples: Sequence[Example],
    decoding: Decoding,
    first_member: int = 0,
) -> list[list[Rollout]]:
    """Play an episode of every member on every example: `[members][examples]`.

    The members of the rollouts are counted from 0.
    """
    if isinstance(graders, EpisodePlayer):
        return graders.play(engine, members, examples, decoding, first_member)
    assert graders.max_turns is not None
    batch = _Batch(graders, graders.max_turns)
    seeds = [environment_seed(example, decoding) for example in examples]
    starts = graders.submit([Transcript((), seed) for seed in seeds], examples).result()
    rows = [row for row, start in enumerate(starts) if start.observation is not None]
    begun = [first_message(examples[row], starts[row].observation or "") for row in rows]
    for member in range(len(members)):
        for row, (example, seed, start) in enumerate(zip(examples, seeds, starts, strict=True)):
            episode = _Episode(example, seed)
            if start.observation is None:
                episode.end(start, "done")
            elif start.observation:
                episode.turns.append(Turn("user", start.observation))
            batch.episodes[member, row] = episode
    if rows:
        engine.converse(
            members,
            [begun] * len(members),
            decoding,
            lambda places, completions: batch.reply(
                [(member, rows[place]) for member, place in places], completions
            ),
        )
    return [
        [batch.episodes[member, row].rollout(member) for row in range(len(examples))]
        for member in range(len(members))
    ]


def first_message(example: Example, observation: str) -> Example:
    """Return an example whose prompt includes what the environment says at the start."""
    if not observation:
        return example
    prompt = f"{example.prompt}\n{observation}" if example.prompt else observation
    return replace(example, prompt=prompt)


def model_turns(example: Example, rollout: Rollout) -> list[tuple[Example, Completion]]:
    """Return each turn of the model with all that came before it.

    The turns of an environment's conversations that are not one after another are not known.
    """
    if rollout.ended is None:
        return [(example, rollout.completion)]
    turns = rollout.turns
    if turns and turns[0].role == "user":
        example, turns = first_message(example, turns[0].content), turns[1:]
    return [
        (
            replace(example, turns=turns[:place]),
            replace(rollout.completion, text=turn.content, tokens=turn.tokens),
        )
        for place, turn in enumerate(turns)
        if turn.role == "assistant"
    ]


def environment_seed(example: Example, decoding: Decoding) -> int:
    """Return the seed of an example's environment, below 2^32: the same for all members."""
    return hashed_number(f"germline environment/{decoding.noise_place}/{example.index}", 32)
