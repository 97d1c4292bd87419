"""Conformance tests of tasks: inherit them, and define how your task is made."""

import math
import pickle
import time
from collections.abc import Mapping
from functools import cached_property

from germline.graders.fuzz_texts import HOSTILE, fuzz_text
from germline.graders.pool import GraderPool
from germline.protocols import Task
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
        texts = [text for text in (*TEXTS, *fuzz_text(300)) for _ in range(2)]
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
