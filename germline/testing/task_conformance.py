"""Conformance tests of tasks: inherit them, and define how your task is made."""

import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from germline.example import Transcript
from germline.graders.fuzz_texts import HOSTILE
from germline.graders.pool import GraderPool
from germline.protocols import EpisodeGrader, EpisodeTask, Task
from germline.types import Example, Split

SPLITS: tuple[Split, Split] = ("train", "test")

TEXTS = ("", *HOSTILE)
"""The empty text and hostile texts, as a broken model may write them."""

LONGEST_S = 2.0
"""Processor time that a grader may take for all texts, in seconds; usual is a hundredth of it."""


class TaskConformance:
    """Tests of the contract of a task, for pytest to collect in a class of yours.

        class TestMine(TaskConformance):
            full_reward = 1.0

            def make(self, split_seed):
                return Mine(split_seed)

    Attributes:
        full_reward: the reward of a gold answer.
    """

    full_reward: float

    def make(self, split_seed: int) -> Task:
        """Return a new task, its examples split by a seed; override this."""
        raise NotImplementedError

    @cached_property
    def task(self) -> Task:
        """The task of most tests."""
        return self.make(0)

    def test_it_keeps_the_contract(self) -> None:
        assert isinstance(self.task, Task)

    def test_the_metric_is_a_part_of_the_rubric_and_so_is_the_floor(self) -> None:
        task = self.task
        assert task.metric in task.rubric
        assert set(task.floor) == set(task.rubric)
        assert all(map(math.isfinite, (*task.rubric.values(), *task.floor.values())))

    def test_the_gold_answer_earns_the_full_reward(self) -> None:
        for split in SPLITS:
            for example in self.task.examples(split):
                assert self._reward(example.answer, example) == self.full_reward, example

    def test_an_empty_answer_earns_less(self) -> None:
        for example in self.task.examples("test"):
            assert self._reward("", example) < self.full_reward, example

    def test_hostile_text_neither_hangs_nor_crashes_the_grader(self) -> None:
        task = self.task
        texts = [text for text in TEXTS for _ in range(2)]
        examples = [task.examples("train")[0], task.examples("test")[-1]] * (len(texts) // 2)
        with GraderPool(task.grader, task.rubric, task.floor, timeout_s=20.0) as pool:
            grades = pool.submit(texts, examples).result(timeout=600)
        failures = [(text, g.failure) for text, g in zip(texts, grades, strict=True) if g.failure]
        assert not failures

    def test_no_text_takes_the_grader_long(self) -> None:
        started = time.process_time()
        for text in TEXTS:
            self.task.grader(text, self._some)
        assert time.process_time() - started < LONGEST_S

    def test_no_reward_is_below_the_floor(self) -> None:
        floor = self._sum(self.task.floor)
        for text in TEXTS:
            assert floor <= self._reward(text, self._some), repr(text[:80])

    def test_the_grader_names_exactly_the_parts_of_the_rubric(self) -> None:
        assert set(self.task.grader("some text", self._some)) == set(self.task.rubric)

    def test_the_splits_share_no_prompt(self) -> None:
        examples = [example for split in SPLITS for example in self.task.examples(split)]
        prompts = [(example.context, example.prompt) for example in examples]
        assert len(set(prompts)) == len(prompts)

    def test_the_splits_are_the_same_every_time_and_differ_with_their_seed(self) -> None:
        again, other = self.make(0), self.make(1)
        for split in SPLITS:
            assert tuple(again.examples(split)) == tuple(self.task.examples(split))
            assert tuple(other.examples(split)) != tuple(self.task.examples(split))

    def test_examples_are_numbered_in_order(self) -> None:
        for split in SPLITS:
            indices = [example.index for example in self.task.examples(split)]
            assert indices == list(range(len(indices)))

    def test_grader_and_examples_can_be_sent_to_another_process(self) -> None:
        for sent in (self.task.grader, self._some):
            assert pickle.loads(pickle.dumps(sent)) == sent

    @property
    def _some(self) -> Example:
        return self.task.examples("test")[0]

    def _reward(self, text: str, example: Example) -> float:
        return self._sum(self.task.grader(text, example))

    def _sum(self, parts: Mapping[str, float]) -> float:
        return sum(weight * parts[part] for part, weight in self.task.rubric.items())


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
        examples = map(self.task.examples, SPLITS)
        train, test = ([(one.prompt, one.facts) for one in split] for split in examples)
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
