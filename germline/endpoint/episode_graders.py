"""Graders whose environments ask for the model's replies over HTTP.

The environments run in one grader process, all episodes of a microbatch at the same time. They ask
an OpenAI-compatible endpoint on loopback, which is that of `germline serve`, over the engine that
evaluates the microbatch. The `model` of a request is `gen-3/member-7`, or `center`. Requests that
arrive together are generated in one batch.

What is promised:

- The sampling noise of a reply depends on the run's seed, the generation, the example, the number
  of the agent's run in the episode, and the number of replies in the conversation: not on the order
  in which requests arrive, and not on the member (common random numbers).
- Which rows are computed together depends on the order, and with it the last bits of their logits.
  So two runs have the same tokens unless two tokens are equally likely up to rounding.
- Greedy episodes have the tokens of the direct path, likewise up to rounding.
"""

import secrets
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from germline.endpoint.engine_batcher import EngineBatcher
from germline.endpoint.http_app import UvicornService
from germline.endpoint.openai_app import Endpoint
from germline.endpoint.rows import RUNS, EpisodeLog, LoggedTurn, NamedWeights
from germline.example import Ended, EndpointEpisode, EpisodeBatch, Transcript, Turn, joined
from germline.graders.pool import GraderPool
from germline.graders.worker_handle import WorkerHandle
from germline.graders.worker_messages import EpisodesGraded, Verdict
from germline.noise import hashed_number
from germline.protocols import Engine, Members
from germline.types import Completion, Decoding, Example, GermlineError, Grade, Rollout


class EndpointGraders(GraderPool):
    """Plays whole episodes in one grader process; its environments ask an endpoint."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**{**named, "workers": 0})
        self._worker = WorkerHandle(self.worker_setup(named["grader"]), self._name)

    def submit(
        self, texts: Sequence[str | Transcript], examples: Sequence[Example]
    ) -> Future[list[Grade]]:
        """Refuse replies that are known before the environment asks for them."""
        raise GermlineError(
            "task.kind=verifiers: the environment asks for replies itself and cannot be tried with "
            "given ones: train with it, such as with generations=1"
        )

    def redirect_output(self, path: Path) -> None:
        """Append what environments print from now on to a file."""
        super().redirect_output(path)
        self._worker.output = path

    def close(self) -> None:
        """End the process."""
        self._worker.close()
        super().close()

    def play(
        self,
        engine: Engine,
        members: Members,
        examples: Sequence[Example],
        decoding: Decoding,
        first_member: int,
    ) -> list[list[Rollout]]:
        """Play an episode of every member on every example: `[members][examples]`."""
        generation = decoding.noise_generation
        names = [
            "center" if member is None else f"gen-{generation}/member-{first_member + place}"
            for place, member in enumerate(members)
        ]
        seeds = episode_seeds(examples, decoding)
        episodes = [
            EndpointEpisode(example.facts, name, seed)
            for name in names
            for example, seed in zip(examples, seeds, strict=True)
        ]
        log = EpisodeLog(_seed(decoding, "no episode", 0))
        weights = NamedWeights(engine, dict(zip(names, members, strict=True)))
        played = iter(self._played(weights, log, episodes, [*examples] * len(names), decoding))
        return [
            [
                _rollout(number, example, log.turns(name, seed), *next(played))
                for example, seed in zip(examples, seeds, strict=True)
            ]
            for number, name in enumerate(names)
        ]

    def _played(
        self,
        weights: NamedWeights,
        log: EpisodeLog,
        episodes: Sequence[EndpointEpisode],
        examples: Sequence[Example],
        decoding: Decoding,
    ) -> list[tuple[Grade, Ended]]:
        """Serve the members while the episodes are played."""
        token = secrets.token_urlsafe(16)
        assert self.max_turns is not None
        sampling = {
            "max_tokens": decoding.max_new_tokens,
            "temperature": decoding.temperature,
            "top_p": decoding.top_p,
            **({"stop": list(decoding.stop)} if decoding.stop else {}),
        }
        batcher = EngineBatcher(weights, max_rows=len(episodes))
        try:
            app = Endpoint(weights, batcher, decoding.max_new_tokens, log).app(token)
            with (
                closing(UvicornService(app, "127.0.0.1", 0)) as server,
                server.in_background() as url,
            ):
                turns, timeout_s = self.max_turns, self._setup.timeout_s
                batch = EpisodeBatch(
                    tuple(episodes), f"{url}/v1", token, sampling, turns, timeout_s
                )
                return self._graded(batch, examples, log)
        finally:
            batcher.close()
            if batcher.first_failure is not None:
                raise batcher.first_failure

    def _graded(
        self, batch: EpisodeBatch, examples: Sequence[Example], log: EpisodeLog
    ) -> list[tuple[Grade, Ended]]:
        """Play the episodes; where one ends the process, each has a process for itself."""
        (verdict,) = self._worker.grade([(batch, examples[0])])
        if isinstance(verdict, EpisodesGraded):
            return [
                (self._grade_of(one, episode, example, log), ended)
                for one, episode, example, ended in zip(
                    verdict.verdicts, batch.episodes, examples, verdict.ended, strict=True
                )
            ]
        if len(batch.episodes) == 1:
            (episode,), (example,) = batch.episodes, examples
            return [(self._grade_of(verdict, episode, example, log), "failure")]
        return [
            self._graded(replace(batch, episodes=(episode,)), [example], log)[0]
            for episode, example in zip(batch.episodes, examples, strict=True)
        ]

    def _grade_of(
        self, verdict: Verdict, episode: EndpointEpisode, example: Example, log: EpisodeLog
    ) -> Grade:
        replies = tuple(turn.completion.text for turn in log.turns(episode.model, episode.seed))
        asked = Transcript(replies, episode.seed)
        return self._read(verdict, (asked, example))


def episode_seeds(examples: Sequence[Example], decoding: Decoding) -> list[int]:
    """Return the seed of each example's episode, which all members share.

    An example that is there twice has two seeds; all are below 2^53, the integers of any JSON.
    """
    seen: Counter[int] = Counter()
    seeds = []
    for example in examples:
        seeds.append(_seed(decoding, str(example.index), seen[example.index]))
        seen[example.index] += 1
    return seeds


def _seed(decoding: Decoding, example: str, occurrence: int) -> int:
    name = f"germline endpoint/{decoding.noise_place}/{example}/{occurrence}"
    return hashed_number(name, 40) * RUNS


def _rollout(
    member: int, example: Example, logged: Sequence[LoggedTurn], grade: Grade, ended: Ended
) -> Rollout:
    """Return the record of an episode, as that of the direct path."""
    turns: list[Turn] = []
    conversations: list[list[Completion]] = []
    for one in logged:
        if one.is_first or not conversations:
            conversations.append([])
        conversations[-1].append(one.completion)
        message = one.example.prompt
        if one.is_first and message.startswith(example.prompt):
            message = message.removeprefix(example.prompt).removeprefix("\n")
        if message:
            turns.append(Turn("user", message))
        turns.append(Turn("assistant", one.completion.text, one.completion.tokens))
    reason: Ended = "failure" if grade.failure is not None else ended
    return Rollout(member, example.index, joined(conversations), grade, tuple(turns), reason)
