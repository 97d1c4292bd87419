"""An engine whose model runs in an inference engine: the fp32 masters are here, the copy is there.

What members are, how the masters move and what an export holds is the same as in the inprocess
engine, so journals are too: only the floating-point numbers of playing differ a little.

Sampling is seeded, and all members share their luck, but each server draws in its own way: sampled
texts differ between engines, greedy ones only where two tokens are about equally likely.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch

from germline.engines.pretrained import PretrainedModel, save_pretrained
from germline.engines.prompt_encoder import PromptEncoder
from germline.engines.served.completion_decoder import CompletionDecoder
from germline.engines.served.masters_spec import make_masters
from germline.engines.served.server_protocol import InferenceServer, SamplingRequest
from germline.engines.update_size import UpdateSizeMeter
from germline.optimizers import AscentOptimizer
from germline.protocols import Space
from germline.signal_types import UpdateSize
from germline.types import Completion, Decoding, Example, MeanUpdate, Perturbation, Update


class ServedEngine:
    """Masters here and a server that plays.

    Args:
        pretrained: the model, whose weights become the masters.
        space: what is searched; None serves the center alone.
        optimizer: of the masters.
        sigma_unit: what sigma and learning rate are multiples of.
        server: not begun yet.
        dtype: what is served in.
    """

    def __init__(
        self,
        pretrained: PretrainedModel,
        space: Space | None,
        optimizer: AscentOptimizer,
        sigma_unit: str,
        server: InferenceServer,
        dtype: torch.dtype,
    ) -> None:
        self.pretrained = pretrained
        self.server = server
        self.dtype = dtype
        self.encoder = PromptEncoder(pretrained)
        self.special_ids = self.encoder.special_ids
        self._texts = CompletionDecoder(pretrained.tokenizer, self.encoder.end_ids)
        self.weights = make_masters(pretrained, space, optimizer, sigma_unit)
        try:
            server.begin(self.weights)
        except BaseException:
            server.close()
            raise

    def generate(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        decoding: Decoding,
    ) -> list[list[Completion]]:
        """Let every member answer every example, as `[members][examples]`; None is the center."""
        self._check_members(members)
        prompts = [self.encoder.encode(example) for example in examples]
        self.encoder.check_length(max(map(len, prompts)) + decoding.max_new_tokens)
        sampling = SamplingRequest(
            decoding,
            example_sampling_seeds(examples, decoding),
            tuple(sorted(self.encoder.end_ids)),
        )
        return [
            [
                self._texts.completion(tokens, len(prompt), decoding)
                for tokens, prompt in zip(row, prompts, strict=True)
            ]
            for row in self.server.generate(members, prompts, sampling)
        ]

    def log_probabilities(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        completions: Sequence[Sequence[Completion]],
    ) -> list[list[Sequence[float]]]:
        """Return how likely each member finds each token of its `completions[members][examples]`.

        Natural logarithms, after the examples' prompts, at temperature 1.
        """
        self._check_members(members)
        prompts = [self.encoder.encode(example) for example in examples]
        written = [[completion.tokens for completion in row] for row in completions]
        return self.server.log_probabilities(members, prompts, written)

    @torch.no_grad()  # no inference tensors: a replay goes on where this left off
    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Move the masters, let the server follow, and measure the step."""
        gauge = UpdateSizeMeter(self.weights, self.dtype)
        self.weights.apply(update)
        self.weights.check_finite(update)
        self.server.apply(update)
        return gauge.read(update)

    def refresh(self) -> None:
        """Serve the masters as they are, after a snapshot was loaded."""
        self.server.refresh()

    def save_model(self, folder: Path, dtype: torch.dtype | None = None) -> None:
        """Write theta as a Hugging Face folder; the serving dtype gives the same tokens."""
        merged = self.weights.merged_tensors()
        save_pretrained(self.pretrained, merged, folder, dtype or self.dtype)

    def save_adapter(self, folder: Path) -> None:
        """Write the center's adapter, in fp32, as a folder that plain `peft` loads."""
        self.weights.save_adapter(folder)

    def close(self) -> None:
        """End what was started for this run."""
        self.server.close()

    def _check_members(self, members: Sequence[Perturbation | None]) -> None:
        if self.weights.space is None:
            self.weights.check_members_supported(members)


def example_sampling_seeds(examples: Sequence[Example], decoding: Decoding) -> tuple[int, ...]:
    """Name the luck of each example: by run seed, generation, stream and example, for all members.

    Hashed, so that neighboring runs and generations share nothing; below 2^63, which is what
    servers take.
    """
    where = f"{decoding.noise_seed}/{decoding.noise_generation}/{decoding.noise_stream}"
    names = (f"germline sampling/{where}/{example.index}".encode() for example in examples)
    digests = (hashlib.sha256(name).digest() for name in names)
    return tuple(int.from_bytes(digest[:8], "little") >> 1 for digest in digests)
