"""A Hugging Face causal language model in this process: one forward pass for many members.

The family of the space decides how members run in the forward pass (`FORWARDS`). On a CPU in fp32
the masters are the serving copy, and need no memory of their own, unless members are dense.
"""

import ctypes
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from germline.config import Config, InProcess
from germline.engines.batched_dense import dense_members
from germline.engines.batched_lora import LoraMembers, LowRankMembers
from germline.engines.batched_members import BatchMembers
from germline.engines.completion_scorer import (
    LOGITS_AT_ONCE,
    CompletionScorer,
    HeadInput,
    PackedBatch,
    pack_completions,
)
from germline.engines.conversation import ConversationBatch, ConversationTurns, reply_from
from germline.engines.decode import TokenDecoder
from germline.engines.grouped_attention import use_grouped_attention
from germline.engines.master_weights import Masters, searched_names
from germline.engines.model_tensors import list_tensors, place_tensors, serving_dtype
from germline.engines.pretrained import (
    PretrainedModel,
    load_pretrained,
    save_pretrained,
    save_tokenizer,
)
from germline.engines.prompt_batch import PromptEncoder, distinct_prompts, pad_prompts
from germline.engines.rows_in_progress import Detokenizer
from germline.engines.sampling import draw_sampling_noise
from germline.engines.shared_layers import SharedLayers
from germline.engines.start_check import check_cached_logits, unserved_family
from germline.engines.subspace_forward import SubspaceMembers
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

FORWARDS: Mapping[str, Callable[[nn.Module, Mapping[str, Tensor], Masters, Any], BatchMembers]] = {
    "low_rank": LowRankMembers,
    "adapter": LoraMembers,
    "coordinates": SubspaceMembers,
}
"""How members of a family run in one batch; those of family `dense` need weights of their own."""


class InProcessEngine:
    """One serving copy on one device, and its fp32 masters."""

    def __init__(
        self,
        pretrained: PretrainedModel,
        space: BaseSpace | None,
        optimizer: AscentOptimizer,
        config: InProcess,
        sigma_unit: str = "constant",
    ) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        if refusal := unserved_family(pretrained.model.config):
            raise GermlineError(refusal)
        self.pretrained = pretrained
        self.device = torch_device(config.device)
        on_gpu = self.device.type != "cpu"
        self.dtype = serving_dtype(config.dtype, pretrained.stored_dtype, on_gpu=on_gpu)
        host = self.device if config.master_device == "device" else torch.device("cpu")
        infos = list_tensors(pretrained.model)
        values = place_tensors(
            pretrained.model,
            searched_names(space, infos),
            *(self.device, self.dtype, host),
            separate=space is not None and space.family == "dense",
        )
        # Buffers keep their dtype: transformers keeps rotary frequencies in fp32.
        self.model = pretrained.model.to(self.device)
        self.head_input = HeadInput(self.model)
        self.serving = {name: p.detach() for name, p in self.model.named_parameters()}
        self.weights = Masters(values, infos, space, optimizer, sigma_unit, pretrained.source, host)
        self._members = self._make_members(space, config)
        self.encoder = PromptEncoder(pretrained)
        self.special_ids = self.encoder.special_ids
        self._shared_layers = SharedLayers(
            self.model, [one.module for one in self._members.forwards]
        )
        self._scorer = CompletionScorer(self.model, self.encoder.padding_id)
        detokenize = Detokenizer(pretrained.tokenizer, self.encoder.end_ids)
        self._decoder = TokenDecoder(self.model, detokenize, self._members.keep)
        if not on_gpu:
            keep_freed_memory()
            if self.dtype == torch.float32:
                use_grouped_attention(self.model)
        check_cached_logits(self.model)

    @classmethod
    def from_config(
        cls,
        config: Config,
        source: str,
        space: BaseSpace | None,
        optimizer: AscentOptimizer,
        *,
        generates: bool = True,
    ) -> "InProcessEngine":
        """Load the model of a config and make its masters; `generates` has no effect."""
        section = config.engine
        assert isinstance(section, InProcess)
        pretrained = load_pretrained(source, config.task.prompt_date)
        return cls(pretrained, space, optimizer, section, config.search.unit)

    @torch.inference_mode()
    def generate(
        self, members: Members, examples: Sequence[Example], decoding: Decoding
    ) -> list[list[Completion]]:
        """Generate the completions `[members][examples]` of every member; None is the center."""
        prompts = [self.encoder.encode(example) for example in examples]
        self.encoder.check_length(max(map(len, prompts)), decoding.max_new_tokens)
        distinct, prompt_of = distinct_prompts(prompts)
        padded = pad_prompts(distinct, self.encoder.padding_id)
        sampling_noise = draw_sampling_noise(examples, decoding)
        completions: list[list[Completion]] = []
        for group in self._groups(members):
            together = members[group]
            with self._fits(len(together), len(examples)), self._members.applied(together):
                completions += self._decoder.generate(
                    len(together), padded, prompt_of, sampling_noise, decoding
                )
        return completions

    @torch.inference_mode()
    def converse(
        self, members: Members, prompts: Conversations, decoding: Decoding, reply: Reply
    ) -> None:
        """Hold conversations of several turns; what has been read stays in the cache."""
        for group in self._groups(members):
            together, own = members[group], prompts[group]
            replies = reply_from(reply, group.start)
            turns = ConversationTurns.of(self.encoder, own, decoding, replies)
            with self._fits(len(together), max(map(len, own))), self._members.applied(together):
                ConversationBatch(self._decoder, len(together), turns).run()

    @torch.inference_mode()
    def read(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Tensor]]:
        """Return the logits of each member at the tokens of each of its completions."""
        packed = self.pack_completions(examples, completions)
        rows = chain.from_iterable(self._read(members, packed.rows, packed.keep, packed.positions))
        read = [row[span] for row, span in zip(rows, packed.spans, strict=True)]
        return [read[row : row + len(examples)] for row in range(0, len(read), len(examples))]

    @torch.inference_mode()
    def log_probabilities(
        self, members: Members, examples: Sequence[Example], completions: Texts
    ) -> list[list[Sequence[float]]]:
        """Return each member's log-probabilities of its `completions[members][examples]`."""
        prompts = [self.encoder.encode(example) for example in examples]
        texts = [[one.tokens for one in row] for row in completions]
        found = []
        for group in self._groups(members, self._scorer.members_at_once(prompts, texts)):
            are_same = all(row == texts[group.start] for row in texts[group])
            sharing = len(texts[group]) if are_same else 1
            with self._members.applied(members[group]), self._shared_layers.among(sharing):
                found.append(self._scorer.score(prompts, texts[group]))
        numbers = iter(torch.cat(found).tolist())
        return [[list(islice(numbers, len(one))) for one in row] for row in texts]

    def pack_completions(self, examples: Sequence[Example], completions: Texts) -> PackedBatch:
        """Pack completions `[members][examples]` behind the examples' prompts.

        Where most of the logits would be of other tokens, as prompts differ much in length, only
        those at the completions are computed; nowhere else, as fewer rows may round otherwise.
        """
        prompts = [self.encoder.encode(example) for example in examples]
        packed = pack_completions(prompts, completions, self.encoder.padding_id)
        kept = len(packed.rows) * packed.keep * self.model.get_input_embeddings().num_embeddings
        return packed.at_completions() if kept > LOGITS_AT_ONCE else packed

    @torch.inference_mode()
    def logits(self, member: Perturbation | None, tokens: Tensor) -> Tensor:
        """Return a member's teacher-forced logits `[rows, length, vocabulary]` on token ids."""
        (logits,) = self._read([member], tokens, 0)
        return logits

    def apply(self, update: Update | MeanUpdate) -> None:
        """Change the masters, and refresh the serving copy."""
        self.weights.apply(update)
        self.weights.check_finite(update)
        self.refresh()

    def refresh(self) -> None:
        """Round the searched masters into the storage of the serving copy."""
        for info in self.weights.searched:
            master, serving = self.weights.tensors[info.name], self.serving.get(info.name)
            if serving is not None and master.data_ptr() != serving.data_ptr():
                serving.copy_(master)

    def save_model(self, folder: Path) -> None:
        """Write theta as a Hugging Face folder; the serving dtype gives the same tokens."""
        merged = self.weights.merged_tensors()
        save_pretrained(self.pretrained, merged, folder, self.dtype)

    def save_adapter(self, folder: Path) -> None:
        """Write the center's adapter, in fp32, as a folder that plain `peft` loads."""
        self.weights.save_adapter(folder)
        save_tokenizer(self.pretrained, folder)

    def close(self) -> None:
        """Do nothing: nothing was started."""

    def _read(
        self, members: Members, tokens: Tensor, keep: int, positions: Tensor | None = None
    ) -> list[Tensor]:
        """Return the logits at the last `keep` positions (0: at all) of rows, by group of members.

        Of these, `positions` `[rows, number]` names those of each row that are computed. The groups
        are not joined: a copy would take as much memory again.
        """
        each = len(tokens) // len(members)
        logits = []
        for group in self._groups(members):
            some = slice(each * group.start, each * group.stop)
            rows = tokens[some].to(self.device)
            places = torch.arange(rows.shape[1], device=self.device).repeat(len(rows), 1)
            at = None if positions is None else positions[some].to(self.device)
            with self._members.applied(members[group]), self.head_input.only(at):
                output = self.model(rows, position_ids=places, logits_to_keep=keep)
            logits.append(output.logits)
        return logits

    def _make_members(self, space: BaseSpace | None, config: InProcess) -> BatchMembers:
        if space is None:
            return BatchMembers(self.serving, self.weights)
        parts = self.model, self.serving, self.weights
        if make := FORWARDS.get(space.family):
            return make(*parts, space)
        return dense_members(*parts, config.members_per_batch)

    def _groups(self, members: Members, most: int | None = None) -> list[slice]:
        """Cut members into groups that run at once, of `most` members or fewer."""
        limits = [limit for limit in (self._members.together, most) if limit is not None]
        groups = -(-len(members) // min(limits, default=len(members)))
        size = -(-len(members) // groups)  # nearly equal groups: none of one or two
        return [slice(start, start + size) for start in range(0, len(members), size)]

    @contextmanager
    def _fits(self, members: int, examples: int) -> Iterator[None]:
        """Raise an error of the memory's end as one that names the setting to change."""
        try:
            yield
        except RuntimeError as error:
            # A GPU has a class of error, torch's allocator on a CPU a message.
            if not isinstance(error, torch.OutOfMemoryError) and (
                "can't allocate memory" not in str(error)
            ):
                raise
            raise GermlineError(
                f"out of memory on {self.device}: {members} members x {examples} examples at once. "
                "The size of a batch is part of its result, so the engine never makes it smaller: "
                "start a run with lower microbatch.rows, microbatch.examples or "
                "task.max_new_tokens (space=full: engine.members_per_batch)"
            ) from error


def keep_freed_memory() -> None:
    """Let glibc keep up to 1 GiB of freed blocks below 32 MiB, unless the user has set that.

    A microbatch allocates what the one before freed, and clearing its pages anew takes nano 8 % of
    the time. See mallopt(3).
    """
    is_set = any(name.startswith("MALLOC_") for name in os.environ)
    if platform.libc_ver()[0] == "glibc" and not is_set:
        mallopt = ctypes.CDLL(None).mallopt
        for threshold, size in ((-3, 32 << 20), (-1, 1 << 30)):  # of mmap, and of trimming
            mallopt(threshold, size)


def torch_device(
    name: str, setting: str = "engine.device", *, must_exist: bool = True
) -> torch.device:
    """Return the device that a setting names: one of PyTorch, or `auto`.

    Where it need not exist, an inference engine may have a build of PyTorch of its own.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        if must_exist:
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise GermlineError(
            f"{setting}={name!r} cannot be used here ({str(error).splitlines()[0]}): use "
            f"{setting}=auto or {setting}=cpu"
        ) from None
    return device
