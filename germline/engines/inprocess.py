"""A Hugging Face causal language model in this process: one forward pass for many members.

Low-rank members and adapters share the base matrix product. Dense members of a small model stand
some at a time, those of a large one are written into the serving copy one after another. On a CPU
in fp32 the serving copy of a run whose members share it *is* the masters: it costs no memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from germline.config import InProcess
from germline.engines.batched_dense import BatchedDenseMembers, members_per_batch
from germline.engines.cpu_kernels import FusedDecoder
from germline.engines.decode import TokenDecoder
from germline.engines.detokenize import Detokenizer
from germline.engines.dtypes import check_dtype, serving_dtype
from germline.engines.lm_head import make_head_input_contiguous
from germline.engines.lora_members import LoraMembers
from germline.engines.malloc_tuning import keep_freed_memory
from germline.engines.master_placement import MasterPlacement, searched_names
from germline.engines.master_weights import Masters, list_tensors
from germline.engines.merge import merged_tensors, save_adapter
from germline.engines.perturbed_model import DenseMembers, LowRankMembers
from germline.engines.pretrained import PretrainedModel, save_pretrained
from germline.engines.prompt_batch import pad_prompts
from germline.engines.prompt_encoder import PromptEncoder
from germline.engines.sampling import draw_sampling_noise
from germline.engines.sliding_window import check_attention_layers
from germline.engines.subspace_forward import SubspaceMembers
from germline.engines.teacher_forcing import PackedBatch, pack_completions, split_completions
from germline.engines.update_size import UpdateSizeMeter
from germline.optimizers import AscentOptimizer
from germline.protocols import AdapterSpace, CoordinateSpace, DenseSpace, LowRankSpace, Space
from germline.signal_types import UpdateSize
from germline.types import (
    Completion,
    Decoding,
    Example,
    GermlineError,
    MeanUpdate,
    Perturbation,
    Update,
)

LOGITS_AT_ONCE = 1 << 27
"""Logits that are held together while texts are read: 0.5 GB in fp32, 880 tokens of Qwen2.5."""


class InProcessEngine:
    """One serving copy on one device, and its fp32 masters."""

    def __init__(
        self,
        pretrained: PretrainedModel,
        space: Space | None,
        optimizer: AscentOptimizer,
        config: InProcess,
        sigma_unit: str = "constant",
    ) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        check_attention_layers(pretrained.model.config.get_text_config())
        self.pretrained = pretrained
        self.device = _device(config.device)
        on_gpu = self.device.type != "cpu"
        if not on_gpu:
            keep_freed_memory()
        self.dtype = serving_dtype(config.dtype, pretrained.stored_dtype, on_gpu=on_gpu)
        check_dtype(config.dtype, self.dtype, self.device)
        host = self.device if config.master_device == "device" else torch.device("cpu")
        placement = MasterPlacement(self.device, self.dtype, host, isinstance(space, DenseSpace))
        infos = list_tensors(pretrained.model)
        values = placement.place(pretrained.model, searched_names(space, infos, pretrained.source))
        # Buffers follow as they are: transformers keeps rotary frequencies in fp32.
        self.model = pretrained.model.to(self.device)
        make_head_input_contiguous(self.model)
        self.serving = {name: p.detach() for name, p in self.model.named_parameters()}
        self.weights = Masters(values, infos, space, optimizer, sigma_unit, pretrained.source, host)
        self._dense = (
            self._members_of_their_own(space, config) if isinstance(space, DenseSpace) else None
        )
        self._batched = self._members_in_one_batch(space)
        self.encoder = PromptEncoder(pretrained)
        self.special_ids = self.encoder.special_ids
        self._decoder = TokenDecoder(
            self.model,
            FusedDecoder(self.model),
            Detokenizer(pretrained.tokenizer),
            self.encoder.end_ids,
            self._members_left,
            fixed_steps=config.cuda_graphs,
        )

    @torch.inference_mode()
    def generate(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        decoding: Decoding,
    ) -> list[list[Completion]]:
        """Let every member answer every example, as `[members][examples]`; None is the center."""
        prompts = [self.encoder.encode(example) for example in examples]
        self.encoder.check_length(max(map(len, prompts)) + decoding.max_new_tokens)
        padded = pad_prompts(prompts, self.encoder.padding_id)
        sampling_noise = draw_sampling_noise(examples, decoding)
        completions: list[list[Completion]] = []
        for together in self._groups(members):
            try:
                with self._standing(together):
                    completions += self._decoder.generate(
                        len(together), padded, sampling_noise, decoding
                    )
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                raise self._does_not_fit(len(together), len(examples)) from error
        return completions

    @torch.inference_mode()
    def read(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        completions: Sequence[Sequence[Completion]],
    ) -> list[list[Tensor]]:
        """Return the logits each member has where its completions were written, one by one."""
        sheet = self.pack_completions(examples, completions)
        logits = self._read(members, sheet.rows, sheet.keep)
        read = [row[span] for row, span in zip(logits, sheet.spans, strict=True)]
        return [read[row : row + len(examples)] for row in range(0, len(read), len(examples))]

    def log_probabilities(
        self,
        members: Sequence[Perturbation | None],
        examples: Sequence[Example],
        completions: Sequence[Sequence[Completion]],
    ) -> list[list[Sequence[float]]]:
        """Return how likely each member finds each token of its `completions[members][examples]`.

        Natural logarithms, after the examples' prompts, at temperature 1. Logits of a few texts are
        in memory at a time.
        """
        found: list[list[Sequence[float]]] = [[] for _ in members]
        most = LOGITS_AT_ONCE // self.model.get_input_embeddings().num_embeddings
        for some, few in split_completions(completions, most):
            written = [row[few] for row in completions[some]]
            read = self.read(members[some], examples[few], written)
            logs = _log_probabilities([one for row in read for one in row], written)
            for place, row in enumerate(written, some.start):
                found[place] += [next(logs) for _ in row]
        return found

    def pack_completions(
        self, examples: Sequence[Example], completions: Sequence[Sequence[Completion]]
    ) -> PackedBatch:
        """Lay out completions `[members][examples]` to be read after the examples' prompts."""
        prompts = [self.encoder.encode(example) for example in examples]
        return pack_completions(prompts, completions, self.encoder.padding_id)

    @torch.inference_mode()
    def logits(self, member: Perturbation | None, tokens: Tensor) -> Tensor:
        """Return a member's teacher-forced logits `[rows, length, vocabulary]` on token ids."""
        return self._read([member], tokens, 0)

    def apply(self, update: Update | MeanUpdate) -> UpdateSize | None:
        """Move the masters, refresh the serving copy, and measure the step."""
        gauge = UpdateSizeMeter(self.weights, self.dtype)
        self.weights.apply(update)
        self.weights.check_finite(update)
        self.refresh()
        return gauge.read(update)

    def refresh(self) -> None:
        """Round the searched masters into the serving copy, keeping its storage."""
        for info in self.weights.searched:
            master, serving = self.weights.tensors[info.name], self.serving.get(info.name)
            if serving is not None and master.data_ptr() != serving.data_ptr():
                serving.copy_(master)

    def save_model(self, folder: Path, dtype: torch.dtype | None = None) -> None:
        """Write theta as a Hugging Face folder; the serving dtype gives the same tokens."""
        save_pretrained(self.pretrained, merged_tensors(self.weights), folder, dtype or self.dtype)

    def save_adapter(self, folder: Path) -> None:
        """Write the center's adapter, in fp32, as a folder that plain `peft` loads."""
        save_adapter(self.weights, folder)

    def _read(self, members: Sequence[Perturbation | None], tokens: Tensor, keep: int) -> Tensor:
        """Return the logits at the last `keep` positions (0: at all) of rows, member by member."""
        each = len(tokens) // len(members)
        found, row = [], 0
        for together in self._groups(members):
            rows = tokens[row : row + each * len(together)].to(self.device)
            positions = torch.arange(rows.shape[1], device=self.device).repeat(len(rows), 1)
            with self._standing(together):
                answer = self.model(rows, position_ids=positions, logits_to_keep=keep)
            found.append(answer.logits)
            row += len(rows)
        return torch.cat(found)

    def _members_in_one_batch(
        self, space: Space | None
    ) -> LowRankMembers | LoraMembers | SubspaceMembers | None:
        if isinstance(space, LowRankSpace):
            return LowRankMembers(self.model, self.serving, self.weights, space)
        if isinstance(space, AdapterSpace):
            return LoraMembers(self.model, self.serving, self.weights, space)
        if isinstance(space, CoordinateSpace):
            return SubspaceMembers(self.model, self.serving, self.weights, space)
        return None

    def _members_of_their_own(
        self, space: DenseSpace, config: InProcess
    ) -> BatchedDenseMembers | DenseMembers:
        together = members_per_batch(config.members_per_batch, self.model, self.weights, self.dtype)
        if together == 1:
            return DenseMembers(self.serving, self.weights, space)
        like = next(iter(self.serving.values()))
        return BatchedDenseMembers(self.model, like, self.weights, space, together)

    def _groups(
        self, members: Sequence[Perturbation | None]
    ) -> list[Sequence[Perturbation | None]]:
        if self._dense is None:
            return [members]  # they share the weights, or all of them are the center
        groups = -(-len(members) // self._dense.together)
        size = -(-len(members) // groups)  # nearly equal groups: none of one or two
        return [members[start : start + size] for start in range(0, len(members), size)]

    @contextmanager
    def _standing(self, members: Sequence[Perturbation | None]) -> Iterator[None]:
        if self._batched:
            with self._batched.applied(members):
                yield
        elif self._dense:
            with self._dense.applied(members):
                yield
        else:
            self.weights.check_members_supported(members)
            yield

    def _does_not_fit(self, members: int, examples: int) -> GermlineError:
        rows = members * examples
        setting, value = "microbatch.examples", examples
        if members > 1:
            setting, value = (
                ("engine.members_per_batch", members) if self._dense else ("microbatch.rows", rows)
            )
        return GermlineError(
            f"out of memory on {self.device}: {members} members x {examples} examples are {rows} "
            "rows at once, which do not fit. Microbatches are never made smaller by themselves, "
            "because "
            f"the size of a batch is part of its result: start a run with {setting}="
            f"{max(1, value // 2)}, or with a lower task.max_new_tokens"
        )

    def _members_left(self, members: Tensor) -> None:
        if self._batched:
            self._batched.corrections.keep(members)
        elif self._dense:
            self._dense.keep(members)


def _log_probabilities(
    logits: Sequence[Tensor], completions: Sequence[Sequence[Completion]]
) -> Iterator[list[float]]:
    """Return those of each completion's tokens, with one copy to and one from a GPU for all."""
    written = [one.tokens for row in completions for one in row]
    sizes = [len(tokens) for tokens in written]
    numbers = torch.tensor([token for tokens in written for token in tokens], dtype=torch.long)
    tokens = numbers.to(logits[0].device).split(sizes)
    logs = torch.cat(
        [
            read.float().log_softmax(-1).gather(-1, own[:, None])[:, 0]
            for read, own in zip(logits, tokens, strict=True)
        ]
    )
    return iter([one.tolist() for one in logs.cpu().split(sizes)])


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Know it on a GPU by its class, on a CPU by the words of torch's allocator."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise GermlineError(
            f"engine.device={name!r} cannot be used here ({str(error).splitlines()[0]}): "
            "use engine.device=auto or engine.device=cpu"
        ) from None
    return device
