"""The work of one generation: rows, tokens and searched numbers, from a config and a model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from germline.config import Config, InProcess
from germline.engines.batched_dense import AUTO_BYTES
from germline.engines.dtypes import serving_dtype
from germline.engines.prompt_batch import pad_prompts
from germline.estimates.model_shape import ModelShape
from germline.optimizers import make_optimizer
from germline.protocols import EpisodeTask, Task
from germline.rollout import generation_grid, members_per_microbatch
from germline.spaces import make_space
from germline.tasks import make_task
from germline.types import Example

POPULATION = 32
"""Members if the strategy chooses their number; CMA-ES chooses a similar one (4 + 3 ln d)."""

CHARACTERS_PER_TOKEN = 3.0
"""Assumed characters per token without a tokenizer: usually four; three is a cautious value."""

CHAT_TOKENS = 24
"""Tokens that a chat template adds to a prompt, assumed without a tokenizer."""


@dataclass(frozen=True)
class TextLengths:
    """Lengths of the texts of a generation, in tokens.

    Attributes:
        examples: number of examples of a generation.
        prompt: length of the longest prompt.
        prefix: length of the common beginning of all prompts.
        new_tokens: length of the longest completion; of an episode, all turns of the model together
            (what the environment will say is not known).
        held_out: number of examples of a held-out score.
    """

    examples: int
    prompt: int
    prefix: int
    new_tokens: int
    held_out: int = 0


def text_lengths(
    config: Config,
    encode: Callable[[Example], Sequence[int]] | None = None,
    task: Task | None = None,
) -> TextLengths:
    """Measure the prompts of a config's task; without a tokenizer, by their characters.

    Args:
        config: of the run.
        encode: returns the tokens of an example's prompt.
        task: of the config; None makes it.
    """
    task = task or make_task(config.task)
    examples = list(task.examples("train")[: config.batch_size])
    held_out = min(config.held_out.examples, len(task.examples("test")))
    turns = task.max_turns if isinstance(task, EpisodeTask) else 1
    new_tokens = turns * (config.task.max_new_tokens or task.max_new_tokens)
    if encode is None:
        characters = max(len(example.prompt) for example in examples)
        prompt = math.ceil(characters / CHARACTERS_PER_TOKEN) + CHAT_TOKENS
        return TextLengths(len(examples), prompt, 0, new_tokens, held_out)
    prompts = [encode(example) for example in examples]
    prefix = len(pad_prompts(prompts, 0).prefix) if len(prompts) > 1 else 0
    longest = max(map(len, prompts))
    return TextLengths(len(examples), longest, prefix, new_tokens, held_out)


@dataclass(frozen=True)
class Workload:
    """The work of one engine in one generation.

    Attributes:
        dtype: serving dtype of the model.
        on_gpu: whether the engine runs on an accelerator.
        members: members of the population.
        directions: directions that are drawn; an antithetic pair shares one.
        examples: examples of a generation.
        rows: rows that one microbatch generates (members x completions).
        members_at_once: members that are in the model at once.
        generating: members of one microbatch that generate; 1 where the center alone does.
        scored: completions that every member scores; 0 where members generate.
        scored_examples: of how many examples these are.
        microbatches: generated microbatches of all engines together.
        engines: engines that share the microbatches.
        texts: lengths of prompts and completions.
        sampled: whether tokens are sampled; otherwise decoding is greedy.
        searched: searched numbers, which updates change.
        largest: numbers in the largest searched tensor.
        tensors: searched tensors.
        member_numbers: numbers that one member adds to the shared weights, in its microbatch.
        searches_weights: whether the searched numbers are weights of the model.
        stacked: members with weights of their own that are in the model at once; 0 if all members
            share the weights.
        moment_bytes: bytes of the optimizer's state per searched number.
        is_served: whether an inference engine generates.
    """

    dtype: torch.dtype
    on_gpu: bool
    members: int
    directions: int
    examples: int
    rows: int
    members_at_once: int
    generating: int
    scored: int
    scored_examples: int
    microbatches: int
    engines: int
    texts: TextLengths
    sampled: bool
    searched: int
    largest: int
    tensors: int
    member_numbers: int
    searches_weights: bool
    stacked: int
    moment_bytes: int
    is_served: bool = False

    @property
    def length(self) -> int:
        """Tokens of the longest text."""
        return self.texts.prompt + self.texts.new_tokens


def workload(config: Config, shape: ModelShape, texts: TextLengths, *, on_gpu: bool) -> Workload:
    """Return the work of a generation of a config.

    Args:
        config: config of the run.
        shape: shape of its model.
        texts: lengths of prompts and completions.
        on_gpu: whether the engine has an accelerator.
    """
    engine = config.engine
    name = getattr(engine, "dtype", "float32")
    dtype = serving_dtype(name, shape.config_dtype, on_gpu=on_gpu)
    members = config.strategy.population or POPULATION
    antithetic = bool(getattr(config.strategy, "antithetic", False))
    batch = texts.examples
    scored = config.method.scored_rows(batch)
    at_once = min(members, members_per_microbatch(config.microbatch, scored or batch))
    space = make_space(config.space, config.seed)
    tensors = space.searched_shapes(shape.tensors)
    searched = sum(math.prod(tensor) for tensor in tensors)
    stacked = 0
    if space.family == "dense":
        stacked = _stacked(engine, searched * dtype.itemsize, at_once)
    generators, completions, size = generation_grid(config, members, batch)
    generating = min(generators, stacked or at_once)
    width = min(size.examples, completions)
    return Workload(
        dtype=dtype,
        on_gpu=on_gpu,
        members=members,
        directions=members // 2 if antithetic else members,
        examples=batch,
        rows=generating * width,
        members_at_once=stacked or at_once,
        generating=generating,
        scored=scored,
        scored_examples=config.method.scored_examples(batch),
        microbatches=-(-generators // generating) * -(-completions // width),
        engines=config.fleet.engines,
        texts=texts,
        sampled=config.task.temperature > 0 or scored > 0,
        searched=searched,
        largest=max(math.prod(tensor) for tensor in tensors),
        tensors=len(tensors),
        member_numbers=space.numbers_per_member(shape.tensors),
        searches_weights=space.searches_weights,
        stacked=stacked,
        moment_bytes=make_optimizer(config.optimizer).bytes_per_number,
        is_served=engine.is_served,
    )


def _stacked(engine: object, bytes_each: int, at_once: int) -> int:
    """Return the number of dense members in the model at once; see `members_per_batch`."""
    if not isinstance(engine, InProcess):
        return 1
    if engine.members_per_batch == "auto":
        return min(at_once, max(1, AUTO_BYTES // bytes_each))
    return min(at_once, engine.members_per_batch)
