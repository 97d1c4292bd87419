"""GRPO and RLOO as TRL has them: the field's baselines, in a run directory like any other.

The center samples G completions of each example, as in `zo_grpo`; they are graded once. Advantages
and loss are those of TRL's `GRPOTrainer` (Shao et al. 2024, arXiv 2402.03300) or `RLOOTrainer`
(Ahmadian et al. 2024, arXiv 2402.14740), and PyTorch computes the gradient by backpropagation.
Generation, stop strings, rewards, held-out scores and the optimizer are germline's: prompts and
completions reach TRL as tokens, so a run differs from one of `es` in how it learns alone.

    num_iterations times:  g = d/d theta loss of TRL, summed over `rows` completions at a time
                           g <- g min(1, max_grad_norm / ||g||)
                           theta <- theta + step(-g)       by `strategy.optimizer`, default Adam

Differences from TRL's defaults: no gradient checkpointing, fp32 unless `engine.dtype` says
otherwise, a constant rate unless it has a schedule, no dropout, RLOO without a KL term and with
groups of 8. A reward that is missing has no advantage, as in TRL; with more than half of them
missing, the run stops.

A trainer of TRL is given tokens and rewards, computes advantages and loss, and PyTorch goes back
through a model that shares its tensors with the engine. So no weight is in memory twice. In an
episode of several turns, tokens of the environment are masked (GRPO only).

Limits: seeds cannot repeat a gradient, so a run resumes from its newest snapshot, to the same bits
on the same machine; one engine, in this process. Needs the extra `trl`.
"""

import copy
import importlib.util
import logging
import math
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from germline.config import Config, Grpo, Rloo
from germline.engines.inprocess import InProcessEngine
from germline.episodes import model_turns
from germline.fleet import Fleet
from germline.methods.method import Evaluated, Method
from germline.methods.policy_gradient import (
    SampledGradientMethod,
    engine_that_learns,
    step_theta,
    tracked,
)
from germline.methods.reward_term import RewardTerm
from germline.protocols import EpisodeTask, Strategy, Task
from germline.shaping import all_equal
from germline.spaces.peft_files import PREFIX
from germline.types import (
    Completion,
    Decoding,
    Evaluation,
    Example,
    GermlineError,
    Population,
    Update,
)

LOGGED = {"entropy": "entropy", "kl": "kl", "clip_ratio/region_mean": "clipped"}
"""Metrics of TRL, and their names in generations.jsonl."""

MASK = 2**63 - 1
"""Of the seeds that torch takes."""


@dataclass(frozen=True)
class TokenRow:
    """A sample as TRL reads it.

    Attributes:
        completion: what follows the prompt: tokens of the model, and of an environment.
        mask: 1 for each token of the model, 0 for one of an environment.
        reward: NaN where it is missing.
    """

    prompt: Sequence[int]
    completion: Sequence[int]
    mask: Sequence[int]
    reward: float


class TrlMethod(SampledGradientMethod):
    """Theta follows the gradient of TRL's loss, see the module."""

    _rows: Sequence[TokenRow] = ()
    _max_new_tokens = 0
    _trainer: Any = None
    _parameters: Mapping[str, nn.Parameter] = {}

    @classmethod
    def from_config(
        cls, config: Config, strategy: Strategy, task: Task | None, terms: Sequence[RewardTerm]
    ) -> Method:
        """Make the method of a run; TRL is imported before anything is measured."""
        if task is not None:
            import_trl(config.method.kind)
        return super().from_config(config, strategy, task, terms)

    @classmethod
    def check_task(cls, config: Config, task: Task) -> None:
        """Refuse a run without TRL, and episodes whose tokens its loss would not mask."""
        kind = config.method.kind
        if importlib.util.find_spec("trl") is None:
            raise GermlineError(f"method.kind={kind} needs TRL: pip install 'germline[trl]'")
        asks = getattr(task, "asks_endpoint", False)
        if asks or (kind == "rloo" and isinstance(task, EpisodeTask)):
            raise GermlineError(
                f"method.kind={kind} cannot train on task.kind={config.task.kind}, which has "
                f"episodes: use method.kind={'es' if asks else 'grpo'}"
            )

    def evaluate(
        self, fleet: Fleet, population: Population, batch: Sequence[Example], decoding: Decoding
    ) -> Evaluated:
        """Let the center sample, and keep the samples as TRL reads them."""
        evaluated = super().evaluate(fleet, population, batch, decoding)
        self._rows = token_rows(engine_that_learns(fleet), evaluated.rollouts, batch)
        self._max_new_tokens = decoding.max_new_tokens
        return evaluated

    def selected(
        self, rewards: Float[np.ndarray, "samples examples"]
    ) -> Bool[np.ndarray, "samples examples"]:
        """Select the samples that have an advantage: those of groups whose rewards differ."""
        known = np.isfinite(rewards)
        columns = zip(rewards.T.astype(np.float64), known.T, strict=True)
        return known & [not all_equal(column[has_reward]) for column, has_reward in columns]

    def train(self, engine: InProcessEngine, update: Update) -> Mapping[str, Any]:
        """Update theta `num_iterations` times along the gradient of the last samples."""
        rows, steps = self._rows, self.section.num_iterations
        if self._trainer is None:
            self._trainer = self._make_trainer(engine)
        trainer = self._trainer
        trainer.given_rows = rows
        trainer._metrics["train"].clear()
        norms = []
        for step in range(steps):
            gradient, norm = self._gradient(update)
            norms.append(norm)
            step_theta(engine, gradient, update, update.generation * steps + step)
            self._read_masters(engine)
        logged = trainer._metrics["train"]  # TRL shows them to `on_log` alone
        found = {name: logged[key] for key, name in LOGGED.items() if logged.get(key)}
        return {
            "backward_tokens": steps * sum(len(one.prompt) + len(one.completion) for one in rows),
            **{name: float(np.mean(values)) for name, values in found.items()},
            "grad_norm": float(np.mean(norms)),
        }

    def _gradient(self, update: Update) -> tuple[dict[str, Tensor], float]:
        """Return the gradient of the loss on the given rows, uphill, in fp32, and its norm."""
        trainer, trained = self._trainer, [*self._parameters.values()]
        inputs = [{"prompt": ""} for _ in self._rows]
        with tracked(trained), _no_future_warnings(), torch.random.fork_rng(devices=[]):
            # TRL orders the rows by the global generator, which is not used elsewhere.
            torch.manual_seed((update.run_seed << 20) + update.generation & MASK)  # noqa: TID251
            with _refusals(self.section):
                for _ in range(trainer.current_gradient_accumulation_steps):
                    trainer.training_step(trainer.model, inputs, None)
            norm = nn.utils.clip_grad_norm_(trained, self.section.max_grad_norm)
            known = {name: one.grad for name, one in self._parameters.items()}
            gradient = {name: -one.float() for name, one in known.items() if one is not None}
        return gradient, float(norm)

    def _make_trainer(self, engine: InProcessEngine) -> Any:
        """Make the trainer, whose model shares its tensors with the engine."""
        model, self._parameters = model_that_learns(engine)
        self._read_masters(engine)
        count = len(self._rows)  # of every batch
        per_pass = largest_divisor(count, self.section.rows)
        with torch.random.fork_rng(devices=[]):  # a trainer seeds the generator of torch
            trainer = make_trainer(
                self.section,
                model,
                engine.pretrained.tokenizer,
                max_completion_length=self._max_new_tokens,
                per_device_train_batch_size=per_pass,
                gradient_accumulation_steps=count // per_pass,
            )
        trainer.current_gradient_accumulation_steps = count // per_pass
        return trainer

    def _read_masters(self, engine: InProcessEngine) -> None:
        """Copy what the engine does not share: an adapter."""
        for name, one in self._parameters.items():
            master = engine.weights.tensors[name]
            if name not in engine.serving and one.data_ptr() != master.data_ptr():
                one.data.copy_(master)


def import_trl(kind: str) -> tuple[type, type]:
    """Import the trainer of TRL and its config, which takes seconds."""
    import trl

    if kind == "grpo":
        return trl.GRPOTrainer, trl.GRPOConfig
    return trl.RLOOTrainer, trl.RLOOConfig


def make_trainer(
    section: Grpo | Rloo, model: nn.Module, tokenizer: PreTrainedTokenizerBase, **sizes: int
) -> Any:
    """Make a trainer of TRL that is given its samples, as its `given_rows`.

    Args:
        section: the method.
        model: whose parameters are trained.
        tokenizer: of the model; a copy of it is used.
        sizes: further arguments of its config.

    Raises:
        GermlineError: TRL refuses an argument of `method.args`.
    """
    from datasets import Dataset

    base, config = import_trl(section.kind)

    class GivenSamples(base):  # type: ignore[misc, valid-type]
        given_rows: Sequence[TokenRow] = ()

        def _send_telemetry(self) -> None: ...

        def _generate(self, prompts: list[Any]) -> tuple[Any, ...]:
            rows = self.given_rows
            prompt_ids = [list(row.prompt) for row in rows]
            completion_ids = [list(row.completion) for row in rows]
            texts = [""] * len(rows)
            if section.kind == "rloo":
                return prompt_ids, completion_ids, texts
            masks = [list(row.mask) for row in rows]
            return prompt_ids, completion_ids, masks, texts, None, {}, None, []

    def rewards(completions: Sequence[str], **_columns: object) -> list[float | None]:
        given = [row.reward for row in trainer.given_rows]
        return [None if math.isnan(one) else one for one in given]

    logging.getLogger("trl").setLevel(logging.ERROR)
    given: Mapping[Any, Any] = section.args
    with _no_future_warnings(), _refusals(section):
        arguments = config(
            output_dir=tempfile.gettempdir(),  # nothing is written
            report_to="none",
            use_cpu=next(model.parameters()).device.type == "cpu",
            bf16=False,
            disable_dropout=True,
            num_generations=section.group_size,
            temperature=section.temperature,
            num_iterations=section.num_iterations,
            beta=section.beta,
            **sizes,
            **{"gradient_checkpointing": False, **given},
        )
        trainer = GivenSamples(
            model=model,
            reward_funcs=rewards,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=copy.deepcopy(tokenizer),
        )
    return trainer


def model_that_learns(engine: InProcessEngine) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """Return a model with the tensors of an engine, and what is trained, by canonical name.

    It is another tree of modules, as a trainer changes methods of its model. An adapter is that of
    peft, with parameters of its own.
    """
    kept = {id(one): one for one in chain(engine.model.parameters(), engine.model.buffers())}
    model = copy.deepcopy(engine.model, kept)
    searched = [info.name for info in engine.weights.searched]
    if not engine.weights.adapted:
        named = dict(model.named_parameters())
        return model, {name: named[name] for name in searched}
    from peft import PeftModel

    with tempfile.TemporaryDirectory() as folder, _no_future_warnings():
        engine.weights.save_adapter(Path(folder))
        adapted = PeftModel.from_pretrained(model, folder, is_trainable=True)
    of_peft = {
        name.removeprefix(PREFIX).replace(".default.", "."): one
        for name, one in adapted.named_parameters()
    }
    adapted.requires_grad_(requires_grad=False)
    return adapted, {name: of_peft[name] for name in searched}


def token_rows(
    engine: InProcessEngine, samples: Evaluation, batch: Sequence[Example]
) -> list[TokenRow]:
    """Return the samples as tokens, those of an example side by side."""
    count, examples = samples.rewards.shape
    rows = []
    for place, example in enumerate(batch):
        prompt = engine.encoder.encode(example)
        for sample in range(count):
            rollout = samples.rollouts[sample * examples + place]
            reward = float(samples.rewards[sample, place])
            rows.append(_token_row(engine, prompt, model_turns(example, rollout), reward))
    return rows


def _token_row(
    engine: InProcessEngine,
    prompt: Sequence[int],
    turns: Sequence[tuple[Example, Completion]],
    reward: float,
) -> TokenRow:
    written: list[int] = []
    mask: list[int] = []
    start = prompt
    for place, (asked, completion) in enumerate(turns):
        before = engine.encoder.encode(asked)
        if place == 0:
            start = before  # an environment may choose the first message
        reply = before[len(start) + len(written) :]
        written += [*reply, *completion.tokens]
        mask += [0] * len(reply) + [1] * len(completion.tokens)
    if not written:  # TRL looks at the last token of every completion
        return TokenRow(start, [engine.encoder.padding_id], [0], math.nan)
    return TokenRow(start, written, mask, reward)


@contextmanager
def _refusals(section: Grpo | Rloo) -> Iterator[None]:
    """Name the setting where TRL refuses a value."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise GermlineError(f"method.kind={section.kind}: {error} (method.args)") from error


@contextmanager
def _no_future_warnings() -> Iterator[None]:
    """Hide that TRL uses names which transformers will drop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of a number that is not above a limit."""
    return next(one for one in range(min(number, limit), 0, -1) if number % one == 0)
