"""Measure members at growing sigmas: whether they are sane, and their signal; and a step.

The sweep begins at the sigma of the calibration (`strategies.calibrated_sigma`), where members
begin to differ, and ends where they are broken. A few members are evaluated on a few batches.
Sanity is measured by degenerate texts and by the exact KL divergence from the base model,
difference by the rewards, and signal by the agreement of the updates that two halves of the
examples give. Where members score and the center generates, its texts are what is measured.

All seeds of a probe differ from those of runs, so that no run uses the noise it was tuned on. Only
training examples are used, so that held-out scores stay independent.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from germline.config import AutoSigma, Config, Nes, PromptSearch
from germline.engines.master_weights import Masters
from germline.estimates.machine import with_dtype
from germline.evaluation.behavior import Answer, behavior
from germline.evaluation.held_out import mean_of_known
from germline.evaluation.kl_divergence import KlDivergence, MemberKl, measure_texts
from germline.fleet import LocalFleet
from germline.generation_loop import batches, generations
from germline.methods.method import Method, check_task, make_method
from germline.protocols import Engine, TextScorer
from germline.report.text_format import number
from germline.run.build_fleet import engine_placement
from germline.run.build_parts import make_decoding, make_engine, make_graders, strategy_of_run
from germline.run.model_prompts import fit_task
from germline.shaping import RESOLUTION, fitness
from germline.signal_metrics import half_agreement, informative_examples
from germline.tasks import make_task
from germline.types import Decoding, Example, GermlineError, Perturbation, as_seed_perturbation

MEMBERS = 8
"""Largest number of members at one sigma."""

BATCHES = 2
"""Batches at one sigma, each with different directions."""

MOST_EXAMPLES = 32
"""Largest number of examples of a batch that are evaluated."""

SANE_KL = 0.1
"""Nats per token; a little above it, members of nano write degenerate texts (measured)."""

SANE_GARBAGE = 0.1
"""Largest share of degenerate texts of sane members, beyond that of the center."""

HALF_DECADE = math.sqrt(10)
"""Factor from one sigma to the next."""

MOST = 8
"""Largest number of sigmas."""

START_PAIRS = 2
"""Pairs of the calibration that finds the first sigma, unless the config has another number."""


@dataclass(frozen=True, slots=True)
class SigmaProbe:
    """Measurements of members at one sigma, or of the center (0): means over the batches.

    Attributes:
        spread: standard deviation of the members' fitness.
        informative: share of the examples on which members differ.
        agreement: cosine of the updates that two halves of the examples give; None without one.
        garbage: share of degenerate texts: `broken` of `evaluation.behavior`.
        divergence: exact KL from the base model per token of the members' texts, in nats.
    """

    sigma: float
    reward: float
    spread: float
    informative: float
    agreement: float | None
    garbage: float
    divergence: float

    def __str__(self) -> str:
        """Describe the measurement in a line."""
        return (
            f"reward {number(self.reward)}, {self.garbage:.0%} degenerate texts, "
            f"KL {self.divergence:.2g} nats per token"
        )


def is_sane(sigma_probe: SigmaProbe, center: SigmaProbe) -> bool:
    """Return whether members still write like the base model.

    Their reward must not have collapsed either, that is, be below the center's by more than twice
    its spread over members. If all members are alike, both means differ by rounding only.
    """
    rounding = RESOLUTION * max(abs(center.reward), abs(sigma_probe.reward))
    return (
        sigma_probe.divergence <= SANE_KL
        and sigma_probe.garbage <= center.garbage + SANE_GARBAGE
        and not center.reward - sigma_probe.reward > 2 * sigma_probe.spread + rounding
    )


@dataclass(frozen=True)
class ProbeEngine:
    """One engine with its graders; `config` has a seed that no run has, and no prompt options."""

    config: Config
    engine: Engine
    fleet: LocalFleet
    decoding: Decoding
    batch_of: Callable[[int], Sequence[Example]]

    @property
    def reader(self) -> TextScorer:
        """The engine as a text scorer."""
        if isinstance(self.engine, TextScorer):
            return self.engine
        raise GermlineError(
            f"probe: engine.kind={self.config.engine.kind} cannot compute the log-probabilities of "
            "a text; use engine.kind=inprocess"
        )

    def method(self, strategy: Nes, generations: int) -> Method:
        """Make the method of the config with another strategy."""
        update = {"strategy": strategy, "generations": generations}
        config = self.config.model_copy(update=update)
        return make_method(config, strategy_of_run(config, self.engine.weights.dimension))

    def few_members(self, sigma: float | AutoSigma, generations: int) -> Method:
        """Make the method with at most `MEMBERS` members in random directions.

        Strategies other than nes also begin with such members. Settings that depend on earlier
        generations, such as a running baseline, are left out.
        """
        section = self.config.strategy
        nes = section if isinstance(section, Nes) else Nes()
        few = Nes(
            population=min(MEMBERS, nes.population),
            antithetic=nes.antithetic,
            sigma=sigma,
            sigma_unit=section.unit,
        )
        return self.method(few, generations)

    def step(self, strategy: Nes) -> float:
        """Train one generation; return how far theta moved: rms per searched number, in sigmas.

        The weights stay where they are then.
        """
        masters = self.engine.weights
        assert isinstance(masters, Masters)  # of every engine that can score texts
        start = {info.name: masters.tensors[info.name].clone() for info in masters.searched}
        method = self.method(strategy, self.config.generations)
        list(generations(method, self.fleet, self.batch_of, self.decoding, range(1)))
        squares, count = 0.0, 0
        for name, before in start.items():
            moved = (masters.tensors[name] - before).cpu() / masters.units[name]
            squares += float(moved.square().sum(dtype=torch.float64))
            count += moved.numel()
        return math.sqrt(squares / count)


@contextmanager
def open_probe_engine(config: Config, seed: int) -> Iterator[ProbeEngine]:
    """Load the model, task and graders of a config for one engine, and close them afterwards."""
    config = with_dtype(engine_placement(config, 0))
    task = fit_task(config, make_task(config.task))
    check_task(config, task)
    digest = hashlib.sha256(f"probe {config.seed} {seed}".encode()).digest()
    run_seed = int.from_bytes(digest[:8])
    engine = make_engine(config)
    with make_graders(config, task) as graders:
        yield ProbeEngine(
            config=config.model_copy(update={"seed": run_seed, "prompt_search": PromptSearch()}),
            engine=engine,
            fleet=LocalFleet(engine, graders, config.microbatch),
            decoding=replace(make_decoding(config, task), noise_seed=run_seed),
            batch_of=batches(task.examples("train"), config.batch_size, run_seed),
        )


def first_sigma(engine: ProbeEngine, given: object, watch: Callable[[str], None]) -> float:
    """Calibrate the sigma at which a sweep begins, as `strategy.sigma` says where it is `auto`."""
    auto = given if isinstance(given, AutoSigma) else AutoSigma()
    settings = auto.model_copy(update={"pairs": auto.pairs or START_PAIRS})
    strategy = engine.few_members(settings, 1).strategy
    divergence = MemberKl(engine.fleet, engine.batch_of, 0, engine.decoding)
    strategy.calibrate(0, divergence)
    sigma = as_seed_perturbation(strategy.ask(0).members[0]).sigma
    watch(f"calibrated in {len(divergence.trials)} trials: sigma {sigma:g}")
    return sigma


def sweep(
    measure: Callable[[float], SigmaProbe], start: float, center: SigmaProbe
) -> Iterator[list[SigmaProbe]]:
    """Yield the measurements by rising sigma, each time with one more.

    Sigma grows from the start until members are broken at two sigmas in a row. If they are broken
    at the start, it falls until they are not.
    """
    rows: list[SigmaProbe] = []
    while len(rows) < MOST:
        if not rows:
            rows = [measure(_rounded(start))]
        elif not any(is_sane(one, center) for one in rows):
            rows = [measure(_rounded(rows[0].sigma / HALF_DECADE)), *rows]
        elif any(is_sane(one, center) for one in rows[-2:]):
            rows = [*rows, measure(_rounded(rows[-1].sigma * HALF_DECADE))]
        else:
            return
        yield rows


def _rounded(sigma: float) -> float:
    return float(f"{sigma:.2g}")


def find_edge(sigma_probes: Sequence[SigmaProbe], center: SigmaProbe) -> float:
    """Return the sigma at which members begin to break, between the last sane one and the next.

    The KL grows like a power of sigma, so it is interpolated linearly in logarithms. If another
    criterion fails first, or a KL is 0, the edge is assumed to be halfway. If no sigma above the
    last sane one was measured, the KL is taken to grow with the square of sigma, and the edge is at
    most half a decade away. At least one sigma is sane.
    """
    sane = [place for place, one in enumerate(sigma_probes) if is_sane(one, center)]
    below, *rest = sigma_probes[sane[-1] :]
    if not rest:
        factor = math.sqrt(SANE_KL / below.divergence) if below.divergence else HALF_DECADE
        return below.sigma * min(HALF_DECADE, factor)
    above, share = rest[0], 0.5
    if 0 < below.divergence < SANE_KL < above.divergence < math.inf:
        share = math.log(SANE_KL / below.divergence) / math.log(above.divergence / below.divergence)
    return below.sigma * (above.sigma / below.sigma) ** share


def probe_sigma(engine: ProbeEngine, center: SigmaProbe, sigma: float) -> SigmaProbe:
    """Evaluate members with one sigma on a few batches."""
    method = engine.few_members(sigma, BATCHES)
    row = _mean(sigma, [_measured(engine, method, place) for place in range(BATCHES)])
    if engine.config.method.members_generate:
        return row
    return replace(row, reward=center.reward, garbage=center.garbage)  # of the same texts


def probe_center(engine: ProbeEngine) -> SigmaProbe:
    """Evaluate the center on the same batches."""
    return _mean(0.0, [_measured(engine, None, place) for place in range(BATCHES)])


def _measured(engine: ProbeEngine, method: Method | None, place: int) -> SigmaProbe:
    examples = engine.batch_of(place)[:MOST_EXAMPLES]
    agreement = None
    members: list[Perturbation | None] = [None]
    if method is None:
        compared = generated = engine.fleet.evaluate_center(examples, engine.decoding)
    else:
        population = method.ask(place)
        members = [*population.members]
        evaluated = method.evaluate(engine.fleet, population, examples, engine.decoding)
        compared, generated = evaluated.members, evaluated.rollouts
        agreement = half_agreement(population, compared, method.shape, evaluated.share)
    written = [
        [one.completion for one in generated.rollouts if one.member == member]
        for member in range(len(members))
    ]
    if not engine.config.method.members_generate:
        written = [written[0][: len(examples)]] * len(members)  # the center's, which members score
    rows = measure_texts(engine.reader.read, engine.reader.read, members, examples, written)
    readings = [one for row in rows for one in row]
    answers = [
        Answer(example.prompt, completion, example.answer, reading.improbable)
        for texts, read in zip(written, rows, strict=True)
        for example, completion, reading in zip(examples, texts, read, strict=True)
    ]
    return SigmaProbe(
        sigma=0.0,
        reward=mean_of_known(generated.rewards),
        spread=float(np.nanstd(fitness(compared.rewards))),
        informative=informative_examples(compared.rewards),
        agreement=agreement,
        garbage=behavior(answers, special_ids=engine.reader.special_ids)["broken"],
        divergence=KlDivergence.of(readings).per_token,
    )


def _mean(sigma: float, batches: Sequence[SigmaProbe]) -> SigmaProbe:
    names = ("reward", "spread", "informative", "agreement", "garbage")
    means: dict[str, Any] = {
        name: mean_of_known(np.array([getattr(one, name) for one in batches], dtype=np.float64))
        for name in names
    }
    if math.isnan(means["agreement"]):
        means["agreement"] = None
    divergence = np.mean([batch.divergence for batch in batches])
    # Members whose logits are not finite have diverged without bound.
    return SigmaProbe(sigma, divergence=float(np.nan_to_num(divergence, nan=math.inf)), **means)
