"""Conformance tests of engines: inherit them, and define how your engine is made."""

from collections.abc import Sequence

import torch

from germline.protocols import Engine, MasterWeights
from germline.types import Completion, Decoding, Example, SeedPerturbation, Update

TEXTS = (
    "What is 1 + 2?",
    "fox",
    "the quick brown fox jumps. The answer is 3.",
    "What is 3 + 33 fox?",
)
DECODING = Decoding(max_new_tokens=6, temperature=0.7, noise_seed=1)


class EngineConformance:
    """Tests of the contract of an engine, for pytest to collect in a class of yours.

        class TestMine(EngineConformance):
            def make(self):
                return Mine(make_space(Full()), Adam())

    Attributes:
        sigma: at which members write texts that differ from the center's.
        chat: whether prompts are wrapped in the model's chat template.
    """

    sigma: float = 0.1
    chat: bool = False

    def make(self) -> Engine:
        """Return a new engine with the same weights in every call; override this."""
        raise NotImplementedError

    def test_it_keeps_the_contract(self) -> None:
        engine = self.make()
        assert isinstance(engine, Engine)
        assert isinstance(engine.weights, MasterWeights)

    def test_every_member_answers_every_example(self) -> None:
        rows = self._played(self.make(), [*self._members(), None])
        assert [len(row) for row in rows] == [len(TEXTS)] * 5
        for completion in (one for row in rows for one in row):
            assert 1 <= len(completion.tokens) <= DECODING.max_new_tokens
            assert completion.prompt_tokens > 0

    def test_members_of_different_directions_and_signs_write_different_things(self) -> None:
        rows = self._played(self.make(), self._members())
        assert rows[0] != rows[2]
        assert rows[0] != rows[1]

    def test_evaluating_a_population_leaves_every_bit_where_it_was(self) -> None:
        engine = self.make()
        digest, center = engine.weights.digest(), self._played(engine, [None])
        self._played(engine, [*self._members(), None])
        assert engine.weights.digest() == digest
        assert self._played(engine, [None]) == center

    def test_two_engines_with_the_same_seed_write_the_same(self) -> None:
        engine, other = self.make(), self.make()
        first = self._played(engine, self._members())
        assert self._played(engine, self._members()) == first
        assert self._played(other, self._members()) == first

    def test_two_engines_agree_after_an_update(self) -> None:
        engine, other = self.make(), self.make()
        before = engine.weights.digest()
        self._played(engine, self._members())
        for one in (engine, other):
            one.apply(_update(0))
        assert engine.weights.digest() == other.weights.digest() != before
        assert self._played(engine, [None]) == self._played(other, [None])

    def test_a_skipped_update_moves_nothing(self) -> None:
        engine = self.make()
        engine.apply(_update(0))
        digest = engine.weights.digest()
        engine.apply(Update(3, 1, 0.02, 0.5, (0.5, -0.5), skipped=True))
        assert engine.weights.digest() == digest

    def test_a_state_taken_over_continues_to_the_same_bits(self) -> None:
        stopped, fresh = self.make(), self.make()
        for generation in range(2):
            stopped.apply(_update(generation))
        state = {name: tensor.clone() for name, tensor in stopped.weights.state().items()}
        fresh.weights.load_state(state)
        fresh.refresh()
        assert self._played(fresh, [None]) == self._played(stopped, [None])
        for one in (stopped, fresh):
            one.apply(_update(2))
        assert fresh.weights.digest() == stopped.weights.digest()
        # The state was copied: later updates have not changed it.
        assert not all(torch.equal(state[key], one) for key, one in stopped.weights.state().items())

    def _members(self) -> list[SeedPerturbation]:
        return [SeedPerturbation(3, 0, k, sign, self.sigma) for k in range(2) for sign in (1, -1)]

    def _played(
        self, engine: Engine, members: Sequence[SeedPerturbation | None]
    ) -> list[list[Completion]]:
        examples = [Example(index, text, "", self.chat) for index, text in enumerate(TEXTS)]
        return engine.generate(members, examples, DECODING)


def _update(generation: int) -> Update:
    return Update(3, generation, 0.02, 0.5, (0.5, -0.25, 0.125))
