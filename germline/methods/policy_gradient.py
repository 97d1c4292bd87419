"""The policy gradient: the direction in which good completions become more likely.

Of R completions y_r with advantages A_r, theta being the center's weights and t a token,

    (1)  g = d/d theta  1/R sum_r A_r sum_t log p_theta(y_rt)                      REINFORCE
    (2)  g = d/d theta  1/R sum_r sum_t min(q_rt A_r, clip(q_rt, 1 - c, 1 + c) A_r)
         with q_rt = p_theta(y_rt) / p_r(y_rt), and p_r the member that wrote y_r

(1) treats completions of perturbed members as if the center had written them. (2) weights each
token by the ratio of its probabilities under the center and under the member that wrote it, clipped
to 1 +- c (Schulman et al. 2017, arXiv 1707.06347, equation 7, with tokens as actions).
Probabilities are those at the sampling temperature, or at 1 for greedy completions.

Gradients are summed in fp32, a few completions at a time, for every serving dtype. In addition to
evaluation this takes the memory of the activations of those completions, and of one fp32 number per
searched number.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from germline.engines.inprocess import InProcessEngine
from germline.types import Completion, Example, Perturbation


@dataclass(frozen=True)
class AdvantageRow:
    """A completion, the member that wrote it (None: the center), and its advantage."""

    member: Perturbation | None
    example: Example
    completion: Completion
    advantage: float


@dataclass(frozen=True)
class PolicyGradient:
    """Computes the gradient.

    Attributes:
        temperature: temperature of the probabilities.
        clip: c of equation (2); None is equation (1).
        at_once: completions per backward pass.
    """

    temperature: float = 1.0
    clip: float | None = None
    rows_per_pass: int = 32

    def of(
        self, engine: InProcessEngine, rows: Sequence[AdvantageRow], count: int
    ) -> Mapping[str, Tensor]:
        """Return the gradient of every searched tensor, in fp32, on the model's device.

        Args:
            engine: serves the center; its weights are not changed.
            rows: completions whose advantage is not 0.
            count: R, the number of all completions.
        """
        searched = {info.name for info in engine.weights.searched}
        parameters = {n: p for n, p in engine.model.named_parameters() if n in searched}
        sums = {name: torch.zeros_like(p, dtype=torch.float32) for name, p in parameters.items()}
        for start in range(0, len(rows), self.rows_per_pass):
            some = rows[start : start + self.rows_per_pass]
            before = None if self.clip is None else self._as_written(engine, some)
            with _tracked(list(parameters.values())):
                objective = self._objective(self._likelihoods(engine, some), some, before)
                (objective / count).backward()
                for name, parameter in parameters.items():
                    if parameter.grad is not None:
                        sums[name].add_(parameter.grad)
        return sums

    def _objective(
        self, now: Sequence[Tensor], rows: Sequence[AdvantageRow], before: Sequence[Tensor] | None
    ) -> Tensor:
        total = now[0].new_zeros(())
        for place, (row, likely) in enumerate(zip(rows, now, strict=True)):
            if before is None or self.clip is None:
                total = total + row.advantage * likely.sum()
            else:
                ratio = (likely - before[place]).exp()
                bounded = ratio.clamp(1 - self.clip, 1 + self.clip)
                total = total + torch.minimum(ratio * row.advantage, bounded * row.advantage).sum()
        return total

    def _likelihoods(self, engine: InProcessEngine, rows: Sequence[AdvantageRow]) -> list[Tensor]:
        """Return log p_theta of every token of every completion."""
        sheet = engine.pack_completions(
            [one.example for one in rows], [[one.completion for one in rows]]
        )
        tokens = sheet.rows.to(engine.device)
        positions = torch.arange(tokens.shape[1], device=engine.device).repeat(len(rows), 1)
        kept = None if sheet.positions is None else sheet.positions.to(engine.device)
        with engine.head_input.only(kept):
            logits = engine.model(
                tokens, position_ids=positions, logits_to_keep=sheet.keep, use_cache=False
            ).logits
        return [
            self._chosen(row[span], one.completion)
            for row, span, one in zip(logits, sheet.spans, rows, strict=True)
        ]

    def _as_written(self, engine: InProcessEngine, rows: Sequence[AdvantageRow]) -> list[Tensor]:
        """Return log p_r of every token: its log probability under the member that wrote it."""
        log_probabilities = []
        for one in rows:
            logits = engine.read([one.member], [one.example], [[one.completion]])[0][0]
            log_probabilities.append(self._chosen(logits.clone(), one.completion))
        return log_probabilities

    def _chosen(self, logits: Tensor, completion: Completion) -> Tensor:
        tokens = torch.tensor(completion.tokens, device=logits.device)[:, None]
        return (logits.float() / self.temperature).log_softmax(-1).gather(-1, tokens)[:, 0]


@contextmanager
def _tracked(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Enable gradients of some parameters during a `with` block."""
    try:
        for parameter in parameters:
            parameter.requires_grad = True
        with torch.enable_grad():
            yield
    finally:
        for parameter in parameters:
            parameter.requires_grad = False
            parameter.grad = None
