"""The sizes that decide memory: of a model, and of a generation that a config computes with it.

A model is read from its config.json and the header of its files, without loading it: it is created
on torch's meta device, which allocates no memory. Names, shapes and ties are the same as after
loading, for every architecture that transformers knows.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from germline.config import Config, InProcess
from germline.config.config_files import model_source
from germline.engines.batched_dense import AUTO_BYTES
from germline.engines.checkpoint_files import stored_dtype, weight_files
from germline.engines.model_tensors import list_tensors, serving_dtype
from germline.engines.pretrained import (
    check_causal,
    hub_access,
    load_tokenizer,
    local_model_folder,
    silence_transformers,
    unpacked_source,
)
from germline.engines.prompt_batch import encode_prompt, pad_prompts
from germline.engines.start_check import unserved_family
from germline.optimizers import make_optimizer
from germline.protocols import EpisodeTask, Task
from germline.rollout import generation_grid, members_per_microbatch
from germline.spaces import make_space
from germline.types import GermlineError, TensorInfo

POPULATION = 32
"""Members if the strategy chooses their number; CMA-ES chooses a similar one (4 + 3 ln d)."""

CHARACTERS_PER_TOKEN = 3.0
"""Assumed characters per token without a tokenizer: usually four; three is a cautious value."""

CHAT_TOKENS = 24
"""Tokens that a chat template adds to a prompt, assumed without a tokenizer."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes that determine memory.

    Attributes:
        tensors: every parameter, tied ones once.
        stored_dtype: dtype of the files, as they are loaded.
        config_dtype: dtype in config.json; `engine.dtype=auto` serves in it on a GPU.
        hidden: width of the residual stream.
        unserved: why engine.kind=inprocess cannot serve the family; None where it may.
    """

    tensors: tuple[TensorInfo, ...]
    stored_dtype: torch.dtype
    config_dtype: torch.dtype
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    unserved: str | None = None

    @cached_property
    def numbers(self) -> int:
        """Number of weights, tied ones counted once."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def size(self) -> str:
        """The number of weights in millions (M) or billions (B), as names of models have it."""
        billions = self.numbers / 1e9
        return f"{billions:.3g} B" if billions >= 0.1 else f"{1e3 * billions:.3g} M"

    @cached_property
    def inner(self) -> int:
        """Width of the MLP: the largest output of a linear layer in the blocks."""
        inside = (one for one in self.tensors if one.layer is not None and len(one.shape) > 1)
        return max(map(_outputs, inside), default=self.hidden)

    @property
    def kv_numbers(self) -> int:
        """Numbers in the keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def _outputs(tensor: TensorInfo) -> int:
    """Return the outputs of a linear layer; experts may be stacked in one tensor."""
    return tensor.out_in_features[0] if len(tensor.shape) == 2 else tensor.shape[-2]


def shape_of(source: str) -> ModelShape:
    """Read the sizes of `nano`, a folder, a GGUF file, or a Hugging Face id."""
    path = Path(unpacked_source(model_source(source), weights=False)).expanduser()
    try:
        place = str(path) if path.exists() else source
        with silence_transformers(), hub_access(place, "model"):
            config = AutoConfig.from_pretrained(place)
        check_causal(source, config)
        # The files of a hub id are not inspected: that would download them.
        has_weights = path.is_dir() and bool(weight_files(path))
        return _shape(config, stored_dtype(str(path)) if has_weights else None)
    except GermlineError:
        raise
    except Exception as error:  # a damaged or unusual config may raise anything in the libraries
        raise GermlineError(
            f"model: config.json or the files of {source!r} cannot be read ({error}): give a "
            "Hugging Face model folder, a hub id, or 'nano'"
        ) from error


def _shape(config: PreTrainedConfig, stored: torch.dtype | None) -> ModelShape:
    with silence_transformers(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    named = config.dtype if isinstance(config.dtype, torch.dtype) else torch.float32
    # Gemma 4 has heads of another size in some layers: the largest ones are counted everywhere.
    layers = getattr(text, "per_layer_config", None) or [text]
    heads = max(_heads(layer) for layer in layers)
    return ModelShape(
        tensors=list_tensors(model),
        stored_dtype=named if stored is None else stored,
        config_dtype=named,
        hidden=int(text.hidden_size),
        layers=int(text.num_hidden_layers),
        heads=heads,
        kv_heads=max(
            int(getattr(layer, "num_key_value_heads", None) or _heads(layer)) for layer in layers
        ),
        head_dim=max(
            int(getattr(layer, "head_dim", None) or text.hidden_size // _heads(layer))
            for layer in layers
        ),
        vocabulary=int(text.vocab_size),
        unserved=unserved_family(config),
    )


def _heads(layer: PreTrainedConfig) -> int:
    """Return the number of heads of attention; a recurrent model has none."""
    return int(getattr(layer, "num_attention_heads", None) or 1)


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


@dataclass(frozen=True)
class Workload:
    """The sizes of one generation that decide the memory of an engine.

    Attributes:
        dtype: serving dtype of the model.
        rows: rows that one microbatch generates (members x completions).
        members_at_once: members that are in the model at once.
        generating: members of one microbatch that generate; 1 where the center alone does.
        scored: completions that every member scores; 0 where members generate.
        searched: numbers that updates change.
        largest: numbers in the largest searched tensor.
        member_numbers: numbers that one member adds to the shared weights, in its microbatch.
        searches_weights: whether the searched numbers are weights of the model.
        stacked: members with weights of their own that are in the model at once; 0 if all members
            share the weights.
        optimizer_bytes: of the optimizer's state, per searched number.
        is_served: whether an inference engine generates.
    """

    dtype: torch.dtype
    on_gpu: bool
    members: int
    rows: int
    members_at_once: int
    generating: int
    scored: int
    texts: TextLengths
    sampled: bool
    searched: int
    largest: int
    member_numbers: int
    searches_weights: bool
    stacked: int
    optimizer_bytes: int
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
    return Workload(
        dtype=dtype,
        on_gpu=on_gpu,
        members=members,
        rows=generating * min(size.examples, completions),
        members_at_once=stacked or at_once,
        generating=generating,
        scored=scored,
        texts=texts,
        sampled=config.task.temperature > 0 or scored > 0,
        searched=searched,
        largest=max(math.prod(tensor) for tensor in tensors),
        member_numbers=space.numbers_per_member(shape.tensors),
        searches_weights=space.searches_weights,
        stacked=stacked,
        optimizer_bytes=make_optimizer(config.optimizer).bytes_per_number,
        is_served=engine.is_served,
    )


def _stacked(engine: object, bytes_each: int, at_once: int) -> int:
    """Return the number of dense members in the model at once; see `members_per_batch`."""
    if not isinstance(engine, InProcess):
        return 1
    if engine.members_per_batch == "auto":
        return min(at_once, max(1, AUTO_BYTES // bytes_each))
    return min(at_once, engine.members_per_batch)
