"""Conformance tests of environments: inherit them, and define how your task is made and played."""

import pickle
from collections.abc import Callable, Mapping, Sequence

from germline.example import Transcript
from germline.graders.pool import GraderPool
from germline.protocols import EpisodeGrader, EpisodeTask
from germline.testing.task_conformance import SPLITS, TEXTS, TaskConformance
from germline.types import Example

Player = Callable[[Sequence[str]], str]
"""(messages of the environment so far) -> the next reply."""

SEEDS = (0, 1, 2**31)


class EnvironmentConformance(TaskConformance):
    """Tests of the contract of a task that is played in an environment, for pytest to collect.

        class TestMine(EnvironmentConformance):
            full_reward = 1.0

            def make(self, split_seed):
                return make_task(Environment(path="mine.py", split_seed=split_seed))

            def gold_reply(self, example, messages):
                return example.answer

    Attributes:
        full_reward: the reward of an episode of gold replies.
        played: number of examples of each split that are played.
    """

    played = 8

    def gold_reply(self, example: Example, messages: Sequence[str]) -> str:
        """Return the best reply after the environment's messages so far; override this.

        The first message is that of `reset`, empty without one.
        """
        raise NotImplementedError

    @property
    def episodes(self) -> EpisodeTask:
        """The task as one of episodes."""
        task = self.task
        assert isinstance(task, EpisodeTask)
        return task

    def test_it_keeps_the_contract(self) -> None:
        super().test_it_keeps_the_contract()
        assert self.episodes.max_turns >= 1

    def test_the_gold_answer_earns_the_full_reward(self) -> None:
        for example in self._examples():
            for seed in SEEDS:
                _, parts = self._play(self._gold_player(example), example, seed)
                assert self._sum(parts) == self.full_reward, (example, seed)

    def test_an_empty_answer_earns_less(self) -> None:
        for example in self._examples():
            _, parts = self._play(lambda _: "", example)
            assert self._sum(parts) < self.full_reward, example

    def test_the_splits_share_no_prompt(self) -> None:
        train, test = (_contents(self.task.examples(split)) for split in SPLITS)
        assert not [row for row in test if row in train]

    def test_the_splits_are_the_same_every_time_and_differ_with_their_seed(self) -> None:
        again = self.make(0)
        for split in SPLITS:
            assert tuple(again.examples(split)) == tuple(self.task.examples(split))

    def test_the_same_replies_have_the_same_messages_and_reward(self) -> None:
        players = [self._gold_player(self._some), *(lambda _, text=text: text for text in TEXTS)]
        for player in players:
            first = self._play(player, self._some, seed=3)
            again = self._play(player, self._some, seed=3, grader=self._copy())
            assert first == again

    def test_an_episode_can_be_continued_where_its_environment_is_not(self) -> None:
        played: list[Transcript] = []
        answers = []
        grader = self.episodes.episode_grader

        def recorded(transcript: Transcript, example: Example) -> Mapping[str, float] | str:
            played.append(transcript)
            answers.append(grader(transcript, example))
            return answers[-1]

        self._play(self._gold_player(self._some), self._some, grader=recorded)
        assert [self._copy()(transcript, self._some) for transcript in played] == answers

    def test_hostile_replies_neither_hang_nor_crash_the_pool(self) -> None:
        task, episodes = self.task, self.episodes
        open_texts: list[str] = list(TEXTS)
        with GraderPool(
            episodes.episode_grader,
            task.rubric,
            task.floor,
            timeout_s=20.0,
            max_turns=episodes.max_turns,
        ) as pool:
            for turn in range(1, episodes.max_turns + 1):
                transcripts = [
                    Transcript((text,) * turn, 0, turn == episodes.max_turns) for text in open_texts
                ]
                examples = [self._some] * len(transcripts)
                grades = pool.submit(transcripts, examples).result(timeout=60)
                answered = list(zip(open_texts, grades, strict=True))
                assert not [(text, grade.failure) for text, grade in answered if grade.failure]
                open_texts = [text for text, grade in answered if grade.observation is not None]
        assert not open_texts

    def test_grader_and_examples_can_be_sent_to_another_process(self) -> None:
        super().test_grader_and_examples_can_be_sent_to_another_process()
        assert self._copy() == self.episodes.episode_grader

    def _examples(self) -> list[Example]:
        return [example for split in SPLITS for example in self.task.examples(split)[: self.played]]

    def _gold_player(self, example: Example) -> Player:
        return lambda messages: self.gold_reply(example, messages)

    def _copy(self) -> EpisodeGrader:
        """Return the grader of another process, which has no live episodes."""
        copied: EpisodeGrader = pickle.loads(pickle.dumps(self.episodes.episode_grader))
        return copied

    def _play(
        self, player: Player, example: Example, seed: int = 0, grader: EpisodeGrader | None = None
    ) -> tuple[list[str], Mapping[str, float]]:
        """Play an episode; return the environment's messages and the parts of the reward."""
        grader = grader or self.episodes.episode_grader
        replies: tuple[str, ...] = ()
        messages: list[str] = []
        for turn in range(self.episodes.max_turns + 1):
            is_final = turn == self.episodes.max_turns
            answer = grader(Transcript(replies, seed, is_final), example)
            if not isinstance(answer, str):
                return messages, answer
            messages.append(answer)
            replies = (*replies, player(tuple(messages)))
        raise AssertionError("the last turn is answered with the parts of the reward")


def _contents(examples: Sequence[Example]) -> list[tuple[str, Mapping[str, object]]]:
    return [(example.prompt, example.facts) for example in examples]
