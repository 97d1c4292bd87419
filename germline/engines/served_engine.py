"""The base class of engines whose model runs in an inference engine: vLLM and SGLang.

The fp32 masters are in this process, the serving copy is in the inference engine. Members, updates
and exports are computed as in the inprocess engine, so the journals are equal; evaluations differ
by rounding only.

Members are adapters of one batch where the space allows it; otherwise one after another is written
into the served weights, where it stays until another is written.

Sampling is seeded, and all members share the seed of an example, but every inference engine has a
sampler of its own: sampled texts differ between engines. Greedy texts differ only where two tokens
are about equally likely.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch

from germline.config import Config
from germline.engines.conversation import ConversationTurns, reply_from
from germline.engines.master_weights import Masters, searched_names
from germline.engines.model_tensors import list_tensors, serving_dtype
from germline.engines.pretrained import (
    PretrainedModel,
    load_pretrained,
    save_pretrained,
    save_tokenizer,
)
from germline.engines.prompt_batch import PromptEncoder
from germline.engines.rows_in_progress import Detokenizer, cut_completion
from germline.noise import hashed_number
from germline.optimizers import AscentOptimizer
from germline.protocols import Conversations, Members, Reply, Texts
from germline.spaces.base import BaseSpace
from germline.types import (
    Completion,
    Decoding,
    Example,
    GermlineError,
    MeanUpdate,
    Perturbation,
    Update,
)

Tokens = Sequence[int]


class SeededPrompt(NamedTuple):
    """A prompt to continue with a seed of sampling below 2^63.

    All members have the same, so that those with equal distributions write equal texts.
    """

    tokens: Tokens
    seed: int


Prompts = Sequence[Sequence[SeededPrompt]]
"""Prompts of each member: `[members][rows]`."""


class ServedEngine:
    """Masters in this process; a subclass evaluates members in an inference engine.

    The class itself has masters alone, for exports: no inference engine need be installed.

    A dtype of None is what `engine.dtype` says for this machine.
    """

    def __init__(
        self,
        config: Config,
        pretrained: PretrainedModel,
        space: BaseSpace | None,
        optimizer: AscentOptimizer,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.pretrained = pretrained
        self.dtype = dtype or serving_dtype(
            getattr(config.engine, "dtype", "auto"),
            pretrained.stored_dtype,
            on_gpu=torch.cuda.is_available(),
        )
        self.encoder = PromptEncoder(pretrained)
        self.special_ids = self.encoder.special_ids
        self.end_ids = sorted(self.encoder.end_ids)
        self.detokenize = Detokenizer(pretrained.tokenizer, self.encoder.end_ids)
        self.weights = make_masters(pretrained, space, optimizer, config.search.unit)
        self._adapters = self.weights.adapter_rank is not None
        self._writes = bool(self.weights.changed_weights())
        # Whose tensors are in the served weights; None: those of an earlier center, or unknown.
        self._written: tuple[Perturbation | None] | None = None

    @classmethod
    def from_config(
        cls,
        config: Config,
        source: str,
        space: BaseSpace | None,
        optimizer: AscentOptimizer,
        *,
        generates: bool = True,
    ) -> "ServedEngine":
        """Construct the engine of a run's config; without `generates`, the masters alone."""
        engine = cls if generates else ServedEngine
        pretrained = load_pretrained(source, config.task.prompt_date)
        return engine(config, pretrained, space, optimizer)

    def generate(
        self, members: Members, examples: Sequence[Example], decoding: Decoding
    ) -> list[list[Completion]]:
        """Generate a completion of every member (None: the center) for every example."""
        prompts = self._prompts(members, examples)
        self.encoder.check_length(max(map(len, prompts)), decoding.max_new_tokens)
        row = [*map(SeededPrompt, prompts, example_sampling_seeds(examples, decoding))]
        return self._complete(members, [row] * len(members), decoding)

    def converse(
        self, members: Members, prompts: Conversations, decoding: Decoding, reply: Reply
    ) -> None:
        """Hold conversations of several turns, of as many members at a time as are served at once.

        A turn sends the whole text so far, most of which is in a prefix cache.
        """
        for group in self._groups(members):
            replies = reply_from(reply, group.start)
            turns = ConversationTurns.of(self.encoder, prompts[group], decoding, replies)
            with self._kept_loaded(members[group]):
                self._converse(members[group], turns)

    def _converse(self, members: Members, turns: ConversationTurns) -> None:
        texts = {place: self.encoder.encode(one) for place, one in turns.examples.items()}
        turn = 0
        while texts:
            examples = [turns.examples[place] for place in texts]
            seeds = example_sampling_seeds(examples, turns.decoding, turn)
            prompts: list[list[SeededPrompt]] = [[] for _ in members]
            for (member, _), text, seed in zip(texts, texts.values(), seeds, strict=True):
                prompts[member].append(SeededPrompt(text, seed))
            rows = self._complete(members, prompts, turns.decoding)
            completions = [completion for row in rows for completion in row]
            written = dict(zip(texts, completions, strict=True))
            texts = {
                place: [*texts[place], *written[place].tokens, *answer]
                for place, answer in turns.answers(written).items()
            }
            turn += 1

    def _complete(
        self, members: Members, prompts: Prompts, decoding: Decoding
    ) -> list[list[Completion]]:
        completions = []
        for group in self._groups(members):
            own = prompts[group]
            tokens = self._generate_tokens(members[group], own, decoding)
            completions += [
                [
                    cut_completion(self.detokenize, text, len(prompt.tokens), decoding)
                    for text, prompt in zip(*rows, strict=True)
                ]
                for rows in zip(tokens, own, strict=True)
            ]
        return completions

    def log_probabilities(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Sequence[float]]]:
        """Return the log-probability of each token of `completions[members][examples]`."""
        prompts = self._prompts(members, examples)
        scores = []
        for group in self._groups(members):
            written = [[completion.tokens for completion in row] for row in completions[group]]
            scores += self._score_tokens(members[group], prompts, written)
        return scores

    @torch.no_grad()  # not inference_mode: a replay goes on from these tensors
    def apply(self, update: Update | MeanUpdate) -> None:
        """Apply the update to the masters, and send what it changed."""
        self.weights.apply(update)
        self.weights.check_finite(update)
        self.refresh()

    def refresh(self) -> None:
        """Note that the masters have changed: the center is written before it is served."""
        self._written = None

    def save_model(self, folder: Path) -> None:
        """Write theta as a Hugging Face folder; the serving dtype gives the same tokens."""
        save_pretrained(self.pretrained, self.weights.merged_tensors(), folder, self.dtype)

    def save_adapter(self, folder: Path) -> None:
        """Write the center's adapter, in fp32, as a folder that plain `peft` loads."""
        self.weights.save_adapter(folder)
        save_tokenizer(self.pretrained, folder)

    def close(self) -> None:
        """End what was started for this run; a user's server gets its own weights back."""

    def _generate_tokens(
        self, members: Members, prompts: Prompts, decoding: Decoding
    ) -> list[list[Tokens]]:
        """Continue the prompts of members that are served at once: `[members][rows]`.

        The tokens may go on after a stop string: `cut_completion` cuts them.
        """
        raise _nothing_serves()

    def _score_tokens(
        self, members: Members, prompts: Sequence[Tokens], written: Sequence[Sequence[Tokens]]
    ) -> list[list[Sequence[float]]]:
        """Return the log-probability of each token of `written[members][prompts]`."""
        raise _nothing_serves()

    def _write_weights(self, member: Perturbation | None) -> None:
        """Write a member's tensors (None: the center's) into the served weights."""
        raise _nothing_serves()

    def _write(self, member: Perturbation | None) -> None:
        """Put a member (None: the center) into the served weights, if it is not there already."""
        if self._writes and self._written != (member,):
            self._written = None
            self._write_weights(member)
            self._written = (member,)

    def _served_at_once(self) -> int | None:
        """Return how many members the inference engine serves at once; None: any number."""
        return None if self._adapters else 1

    def _kept_loaded(self, members: Members) -> AbstractContextManager[None]:
        """Keep the adapters of members loaded in a `with` block, where they would not be."""
        return nullcontext()

    def _groups(self, members: Members) -> list[slice]:
        size = self._served_at_once() or max(1, len(members))
        return [slice(first, first + size) for first in range(0, len(members), size)]

    def _prompts(self, members: Members, examples: Sequence[Example]) -> list[Tokens]:
        has_space = self.weights.space is not None
        assert has_space or not any(members), "without a space, the center alone can be evaluated"
        return [self.encoder.encode(example) for example in examples]


def _nothing_serves() -> GermlineError:
    return GermlineError(
        "these weights were rebuilt for an export: no inference engine serves them"
    )


def make_masters(
    pretrained: PretrainedModel,
    space: BaseSpace | None,
    optimizer: AscentOptimizer,
    sigma_unit: str,
) -> Masters:
    """Build masters of a model: bit-identical in every process.

    Searched parameters become fp32, one after another; the others keep their stored dtype.
    """
    model = pretrained.model
    infos = list_tensors(model)
    searched = searched_names(space, infos)
    values = {}
    for name, parameter in model.named_parameters():
        if name in searched:
            parameter.data = parameter.data.float()
        values[name] = parameter.detach()
    return Masters(values, infos, space, optimizer, sigma_unit, pretrained.source)


def example_sampling_seeds(
    examples: Sequence[Example], decoding: Decoding, turn: int = 0
) -> tuple[int, ...]:
    """Return the sampling seed of each example in a turn: the same for all members.

    It is below 2^63, the range that inference engines accept.
    """
    where, later = decoding.noise_place, f"/turn {turn}" if turn else ""
    rows = (f"{one.index}/sample {one.sample}" if one.sample else one.index for one in examples)
    return tuple(hashed_number(f"germline sampling/{where}/{row}{later}", 63) for row in rows)
