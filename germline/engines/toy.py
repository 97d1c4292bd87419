"""A character model of a few thousand weights, for tests, docs and bug reports.

Next character = argmax of read(tanh(mix(mean embedding of the prompt) + position + previous
character)). It was never trained, but it is a causal language model with embeddings, linear layers
and a bias, served from fp32 masters like any other.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path

import torch
from torch import Tensor, nn

from germline import noise
from germline.config import Config
from germline.engines.master_weights import Masters
from germline.engines.model_tensors import list_tensors
from germline.engines.sampling import choose_tokens, draw_sampling_noise
from germline.optimizers import AscentOptimizer
from germline.protocols import Conversations, Members, Reply, Texts
from germline.spaces.base import BaseSpace
from germline.types import Completion, Decoding, Example, GermlineError, MeanUpdate, Update

ALPHABET = [chr(code) for code in range(32, 127)]
END = len(ALPHABET)
CHARACTERS = [*ALPHABET, "\0"]
"""What every token is in a text that is being written: END is the zero character."""
WIDTH = 8
POSITIONS = 32


class _ToyModel(nn.Module):
    """The shapes; the weights are `noise.weight_noise`, so they are the same on every machine."""

    def __init__(self) -> None:
        super().__init__()
        characters = len(ALPHABET) + 1
        self.embed = nn.Embedding(characters, WIDTH)
        self.position = nn.Embedding(POSITIONS, WIDTH)
        block = nn.ModuleDict(
            {"mix": nn.Linear(WIDTH, WIDTH), "read": nn.Linear(WIDTH, characters, bias=False)}
        )
        self.layers = nn.ModuleList([block])
        for name, parameter in self.named_parameters():
            values = noise.weight_noise(0, 0, 0, f"toy/{name}", parameter.numel())
            parameter.data = torch.from_numpy(values).reshape(parameter.shape)


class ToyEngine:
    """Serves members one after another from merged copies of its weights."""

    def __init__(
        self, space: BaseSpace | None, optimizer: AscentOptimizer, sigma_unit: str = "constant"
    ) -> None:
        model = _ToyModel()
        masters = {name: p.detach() for name, p in model.named_parameters()}
        self.special_ids = frozenset({END})
        self.weights = Masters(masters, list_tensors(model), space, optimizer, sigma_unit, "toy")

    @classmethod
    def from_config(
        cls,
        config: Config,
        source: str,
        space: BaseSpace | None,
        optimizer: AscentOptimizer,
        *,
        generates: bool = True,
    ) -> "ToyEngine":
        """Construct it from the config of a run; it loads no model from a source."""
        return cls(space, optimizer, config.search.unit)

    @torch.inference_mode()
    def generate(
        self, members: Members, examples: Sequence[Example], decoding: Decoding
    ) -> list[list[Completion]]:
        """Let every member answer every example, as `[members][examples]`; None is the center."""
        sampling_noise = draw_sampling_noise(examples, decoding)
        models = (self.weights.merged_tensors(member) for member in members)
        return [self._complete(tensors, examples, sampling_noise, decoding) for tensors in models]

    @torch.inference_mode()
    def converse(
        self, members: Members, prompts: Conversations, decoding: Decoding, reply: Reply
    ) -> None:
        """Hold conversations, member after member; a turn continues the whole text so far."""
        for number, (member, examples) in enumerate(zip(members, prompts, strict=True)):
            tensors = self.weights.merged_tensors(member)
            texts, turn = dict(enumerate(examples)), 0
            while texts:
                sampling_noise = draw_sampling_noise([*texts.values()], decoding, turn)
                written = self._complete(tensors, [*texts.values()], sampling_noise, decoding)
                answers = reply([(number, row) for row in texts], written)
                turns = zip(texts.items(), written, answers, strict=True)
                texts = {
                    row: replace(text, prompt=text.prompt + completion.text + answer)
                    for (row, text), completion, answer in turns
                    if answer is not None
                }
                turn += 1

    @torch.inference_mode()
    def read(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Tensor]]:
        """Return the logits of each member before each character of its completions."""
        models = map(self.weights.merged_tensors, members)
        return [
            _read(tensors, [*zip(examples, written, strict=True)])
            for tensors, written in zip(models, completions, strict=True)
        ]

    def log_probabilities(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Sequence[float]]]:
        """Return the log-probability of each character of the completions, for each member."""
        return [
            [
                logits.log_softmax(-1)[range(len(one.tokens)), list(one.tokens)].tolist()
                for logits, one in zip(*rows, strict=True)
            ]
            for rows in zip(self.read(members, examples, completions), completions, strict=True)
        ]

    def apply(self, update: Update | MeanUpdate) -> None:
        """Apply the update to the masters; there is no serving copy."""
        self.weights.apply(update)
        self.weights.check_finite(update)

    def refresh(self) -> None:
        """Do nothing: members are merged from the masters each time."""

    def save_model(self, folder: Path) -> None:
        """Refuse: there is no Hugging Face architecture for it."""
        raise GermlineError(
            "export: engine=toy has no Hugging Face format; train with engine=inprocess to export"
        )

    def save_adapter(self, folder: Path) -> None:
        """Write the center's adapter as a PEFT folder, for training to start from."""
        self.weights.save_adapter(folder)

    def close(self) -> None:
        """Do nothing: nothing was started."""

    def _complete(
        self,
        tensors: dict[str, Tensor],
        examples: Sequence[Example],
        sampling_noise: Tensor,
        decoding: Decoding,
    ) -> list[Completion]:
        prompts = [_ids(example) for example in examples]
        mixed = _mixed(tensors, prompts)
        previous = torch.zeros_like(mixed)
        written: list[Tensor] = []
        texts = [""] * len(prompts)
        while len(written) < decoding.max_new_tokens and not all(
            _has_ended(text, decoding) for text in texts
        ):
            step = len(written)
            position = tensors["position.weight"][step % POSITIONS]
            logits = _logits(tensors, mixed + position + previous)
            tokens = choose_tokens(logits, sampling_noise[:, step], decoding)
            previous = tensors["embed.weight"][tokens]
            written.append(tokens)
            texts = [
                text + CHARACTERS[one] for text, one in zip(texts, tokens.tolist(), strict=True)
            ]
        rows = torch.stack(written, dim=1).tolist()
        return [
            _completion(row, len(ids), decoding) for row, ids in zip(rows, prompts, strict=True)
        ]


def _mixed(tensors: dict[str, Tensor], prompts: Sequence[list[int]]) -> Tensor:
    """Return the mean embedding of prompts after the layer `mix`, `[prompts, width]`."""
    ids = torch.tensor([*chain.from_iterable(prompts)])
    starts = torch.tensor([0, *accumulate(map(len, prompts[:-1]))])
    thought = nn.functional.embedding_bag(ids, tensors["embed.weight"], starts, mode="mean")
    return thought @ tensors["layers.0.mix.weight"].T + tensors["layers.0.mix.bias"]


def _logits(tensors: dict[str, Tensor], thought: Tensor) -> Tensor:
    """Return the logits of the next character."""
    return torch.tanh(thought) @ tensors["layers.0.read.weight"].T


def _read(tensors: dict[str, Tensor], texts: Sequence[tuple[Example, Completion]]) -> list[Tensor]:
    """Return the logits at every character of texts, each `[tokens, characters]`."""
    sizes = [len(written.tokens) for _, written in texts]
    mixed = _mixed(tensors, [_ids(example) for example, _ in texts])
    tokens = chain.from_iterable(written.tokens for _, written in texts)
    before = torch.tensor([END, *tokens])[:-1]
    steps = [*chain.from_iterable(map(range, sizes))]
    previous = tensors["embed.weight"][before]
    previous[[step == 0 for step in steps]] = 0
    positions = tensors["position.weight"][[step % POSITIONS for step in steps]]
    thought = mixed.repeat_interleave(torch.tensor(sizes), 0) + positions + previous
    return [*_logits(tensors, thought).split(sizes)]


def _ids(example: Example) -> list[int]:
    if example.token_ids:
        return list(example.token_ids)
    text = example.prompt + "".join(turn.content for turn in example.turns)
    return [ord(character) % len(ALPHABET) for character in text] or [0]


def _has_ended(text: str, decoding: Decoding) -> bool:
    """Return whether no later character, such as of an earlier stop string, can change it."""
    settled = len(text) - max(map(len, decoding.stop), default=0)
    return CHARACTERS[END] in text or any(0 <= text.find(stop) <= settled for stop in decoding.stop)


def _completion(row: Sequence[int], prompt_tokens: int, decoding: Decoding) -> Completion:
    tokens = tuple(row[: row.index(END) + 1] if END in row else row)
    text = "".join(ALPHABET[token] for token in tokens if token != END)
    found = [(place, place + len(s)) for s in decoding.stop if (place := text.find(s)) >= 0]
    if not found:
        return Completion(text, tokens, "eos" if END in row else "length", prompt_tokens)
    starts, ends = zip(*found, strict=True)
    return Completion(text[: min(starts)], tokens[: min(ends)], "stop", prompt_tokens)
