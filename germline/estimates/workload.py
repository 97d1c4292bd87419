"""The work of one generation: rows, tokens and searched numbers, from a config and a model."""

import math
from dataclasses import dataclass

import torch

from germline.config import Config, InProcess
from germline.config.config_files import model_source
from germline.engines.batched_dense import AUTO_BYTES
from germline.engines.model_tensors import serving_dtype
from germline.engines.pretrained import load_tokenizer, local_model_folder, silence_transformers
from germline.engines.prompt_batch import encode_prompt, pad_prompts
from germline.estimates.model_shape import ModelShape
from germline.optimizers import make_optimizer
from germline.protocols import EpisodeTask, Task
from germline.rollout import generation_grid, members_per_microbatch
from germline.spaces import make_space
from germline.types import GermlineError

POPULATION = 32
"""Members if the strategy chooses their number; CMA-ES chooses a similar one (4 + 3 ln d)."""

CHARACTERS_PER_TOKEN = 3.0
"""Assumed characters per token without a tokenizer: usually four; three is a cautious value."""

CHAT_TOKENS = 24
"""Tokens that a chat template adds to a prompt, assumed without a tokenizer."""

GUESSED_TOKENS = 256
"""Assumed tokens of prompts and completions; only memory in addition to the weights uses them."""


@dataclass(frozen=True)
class TextLengths:
    """Lengths of the texts of a generation, in tokens.

    Attributes:
        examples: number of examples of a generation.
        prompt: of the longest prompt.
        prefix: of the common beginning of all prompts.
        new_tokens: of the longest completion; of an episode, all turns of the model together.
    """

    examples: int
    prompt: int
    prefix: int
    new_tokens: int


def text_lengths(config: Config, task: Task) -> TextLengths:
    """Measure the prompts of a task with the model's tokenizer if it is on this machine.

    Without it, lengths are estimated from the number of characters.
    """
    examples = list(task.examples("train")[: config.batch_size])
    turns = task.max_turns if isinstance(task, EpisodeTask) else 1
    new_tokens = turns * (config.task.max_new_tokens or task.max_new_tokens)
    folder = local_model_folder(model_source(config.model))
    if folder is None or not (folder / "tokenizer_config.json").is_file():
        characters = max(len(example.prompt) for example in examples)
        prompt = math.ceil(characters / CHARACTERS_PER_TOKEN) + CHAT_TOKENS
        return TextLengths(len(examples), prompt, 0, new_tokens)
    with silence_transformers():
        tokenizer, _ = load_tokenizer(str(folder))
    prompts = [encode_prompt(tokenizer, one, config.task.prompt_date) for one in examples]
    prefix = len(pad_prompts(prompts, 0).prefix) if len(prompts) > 1 else 0
    return TextLengths(len(examples), max(map(len, prompts)), prefix, new_tokens)


def guessed_lengths(config: Config) -> TextLengths:
    """Assume the lengths of texts where no task is loaded."""
    new_tokens = config.task.max_new_tokens or GUESSED_TOKENS
    return TextLengths(config.batch_size, GUESSED_TOKENS, 0, new_tokens)


@dataclass(frozen=True)
class Workload:
    """The sizes of one generation that decide the memory of an engine.

    Attributes:
        dtype: serving dtype of the model.
        rows: rows that one microbatch generates (members x completions).
        members_at_once: members that are in the model at once.
        generating: members of one microbatch that generate; 1 where the center alone does.
        scored: completions that every member scores; 0 where members generate.
        microbatches: generated microbatches of all engines together.
        searched: numbers that updates change.
        largest: numbers in the largest searched tensor.
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
    rows: int
    members_at_once: int
    generating: int
    scored: int
    microbatches: int
    texts: TextLengths
    sampled: bool
    searched: int
    largest: int
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
    """Return the work of a generation of a config; refuse a family that the engine cannot serve."""
    engine = config.engine
    if shape.unserved and isinstance(engine, InProcess):
        raise GermlineError(shape.unserved)
    name = getattr(engine, "dtype", "float32")
    dtype = serving_dtype(name, shape.config_dtype, on_gpu=on_gpu)
    members = (config.strategy.population or POPULATION) if config.method.perturbs else 1
    generators, completions, size = generation_grid(config, members, texts.examples)
    scored = config.method.scored_rows(texts.examples)
    at_once = min(members, members_per_microbatch(config.microbatch, scored or completions))
    space = make_space(config.space, config.seed)
    tensors = space.searched_shapes(shape.tensors)
    searched = sum(math.prod(tensor) for tensor in tensors)
    stacked = 0
    if space.family == "dense":
        stacked = _stacked(engine, searched * dtype.itemsize, at_once)
    generating = min(generators, stacked or at_once)
    width = min(size.examples, completions)
    return Workload(
        dtype=dtype,
        on_gpu=on_gpu,
        members=members,
        rows=generating * width,
        members_at_once=stacked or at_once,
        generating=generating,
        scored=scored,
        microbatches=-(-generators // generating) * -(-completions // width),
        texts=texts,
        sampled=config.task.temperature > 0 or scored > 0,
        searched=searched,
        largest=max(math.prod(tensor) for tensor in tensors),
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
