"""Build the objects that a config names: the model, the task, the strategy and the fleet."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from germline import registry
from germline.checkpoint import check_digest, restore
from germline.config import Config, Local, SafeAlignment
from germline.config.config_files import model_source
from germline.config.run_config import Retained
from germline.endpoint import serve_extra
from germline.engines.master_weights import Masters
from germline.evaluation.held_out import HELD_OUT_NOISE, HeldOutScorers
from germline.fleet import Fleet
from germline.fleet.worker_jobs import dimension
from germline.generation_loop import batches
from germline.graders.pool import (
    GraderPool,
    InProcessPool,
    can_be_imported,
    warn_of_local_functions,
)
from germline.graders.reward_functions import FunctionRubric
from germline.methods.kl_penalty import KlPenaltyTerm
from germline.methods.lagrange_multiplier import LagrangeTerm
from germline.methods.method import Method, make_method
from germline.methods.reward_term import RewardTerm
from germline.optimizers import make_optimizer
from germline.protocols import Engine, EpisodeTask, Strategy, Task
from germline.record.journal import Ancestor, JournalEntry
from germline.run.build_fleet import engine_placement, make_fleet
from germline.run.model_prompts import check_prompt_lengths, fit_task
from germline.run.preflight import check_episode_rewards, check_memory, check_run
from germline.run.retained import RetainedTask, RetainedText, read_text
from germline.scorers.scored_graders import Graders, ScoredGraders
from germline.spaces import make_space
from germline.strategies import make_strategy
from germline.tasks import make_task
from germline.tasks.python_inputs import NO_INPUTS, PythonInputs
from germline.tasks.task_settings import ThinkingStripper, own_grader, scored_text_of
from germline.types import Decoding, Example, GermlineError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunParts(AbstractContextManager["RunParts"]):
    """The objects of one run; a context manager that ends the processes of graders and engines.

    `batch(generation)` returns the training examples of a generation.
    """

    config: Config
    task: Task
    fleet: Fleet
    graders: Graders
    decoding: Decoding
    method: Method
    batch: Callable[[int], Sequence[Example]]
    held_out_scorers: HeldOutScorers
    retained: Mapping[str, RetainedTask | RetainedText]

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes of graders and engines."""
        for part in (self.fleet, self.method, self.held_out_scorers, *self.all_graders):
            part.close()

    @property
    def all_graders(self) -> list[Graders]:
        """The graders of the task and of those that `retained` names."""
        retained = (one for one in self.retained.values() if isinstance(one, RetainedTask))
        return [self.graders, *(one.graders for one in retained)]

    @property
    def held_out_examples(self) -> Sequence[Example]:
        """The examples of every held-out score."""
        return self.task.examples("test")[: self.config.held_out.examples]

    def decoding_of(self, generation: int) -> Decoding:
        """Return the decoding of a generation, with its own sampling noise."""
        return replace(self.decoding, noise_generation=generation)

    def restore(self, entries: Sequence[JournalEntry], snapshots: Path, base_digest: str) -> None:
        """Bring the weights to the state after the last entry, and the method to what it sampled.

        See `Fleet.restore`.
        """
        done = len(entries)
        sampled = self.method.sampled_at(done)
        if not sampled < done < self.config.generations:
            self.fleet.restore(entries, snapshots, base_digest)
            return
        self.fleet.restore(entries[:sampled], snapshots, base_digest)
        self.method.sample(self.fleet, self.batch(sampled), self.decoding_of(sampled))
        for entry in entries[sampled:]:
            self.fleet.apply(entry.update)
        check_digest(done - 1, self.fleet.digest(), entries[-1].digest)


def build_run_parts(
    config: Config, ancestors: Sequence[Ancestor] = (), inputs: PythonInputs = NO_INPUTS
) -> RunParts:
    """Load the model and the task, make the strategy, and start the graders.

    Args:
        config: config of the run.
        ancestors: the runs that led to its starting weights, see `RunDirectory.ancestors`.
        inputs: the rows and reward functions that were given from Python.

    Raises:
        GermlineError: the model, task or another object of the config cannot be loaded.
    """
    task = fit_task(config, make_task(config.task, inputs))
    check_run(config, task)
    if isinstance(config.fleet, Local):
        check_memory(config, engines=config.fleet.engines)
    with ExitStack() as opened:
        graders = make_graders(config, task)
        opened.callback(graders.close)
        held_out_scorers = HeldOutScorers(config.held_out.scorers, scored_text_of(task))
        opened.callback(held_out_scorers.close)
        retained: dict[str, RetainedTask | RetainedText] = {}
        for name, section in config.retained.items():
            try:
                retained[name] = one = _make_retained(config, section)
            except GermlineError as error:
                raise GermlineError(f"retained.{name}: {error}") from None
            if isinstance(one, RetainedTask):
                opened.callback(one.graders.close)
        fleet = make_fleet(config, partial(make_engine, ancestors=ancestors), graders)
        opened.callback(fleet.close)
        terms = _reward_terms(config, task, ancestors)
        for term in terms:
            opened.callback(term.close)
        strategy = strategy_of_run(config, fleet.query(dimension))
        config = with_population(config, strategy)
        if (optimizer := config.optimizer).weight_decay and config.strategy.has_measured_rate:
            log.warning(
                "strategy.optimizer.weight_decay=%g acts by weight_decay x learning_rate in every "
                "generation, and learning_rate=auto changes by orders of magnitude: give a number, "
                "such as strategy.learning_rate=0.01",
                optimizer.weight_decay,
            )
        method = make_method(config, strategy, task, terms)
        opened.pop_all()
    return RunParts(
        config=config,
        task=task,
        fleet=fleet,
        graders=graders,
        decoding=make_decoding(config, task),
        method=method,
        batch=batches(
            task.examples("train"), config.batch_size, config.seed, method.batch_generation
        ),
        held_out_scorers=held_out_scorers,
        retained=retained,
    )


def _reward_terms(config: Config, task: Task, ancestors: Sequence[Ancestor]) -> list[RewardTerm]:
    terms: list[RewardTerm] = []
    if config.task.kl_coef is not None:
        # Theta of these spaces starts as the model on disk, so the start model needs no masters.
        plain = config.space.kind in ("full", "low_rank") and not ancestors
        placed = engine_placement(config, 0)
        start = make_engine(placed, searched=not plain, ancestors=ancestors)
        terms.append(KlPenaltyTerm(start, config.task))
    if isinstance(config.task, SafeAlignment) and config.task.adapts:
        terms.append(LagrangeTerm(config.task, task.rubric))
    return terms


def strategy_of_run(config: Config, dimension: int) -> Strategy:
    """Make the strategy of a run; also to replay one whose strategy recomputes its updates."""
    return make_strategy(
        config.search, run_seed=config.seed, generations=config.generations, dimension=dimension
    )


def with_population(config: Config, strategy: Strategy) -> Config:
    """Write the number of members into the config if the strategy chose it."""
    if config.strategy.population is not None:
        return config
    section = config.strategy.model_copy(update={"population": len(strategy.ask(0))})
    return config.model_copy(update={"strategy": section})


def make_graders(config: Config, task: Task) -> Graders:
    """Start what grades a task: a pool, and the scorers that it names.

    Raises:
        GermlineError: the pool or a scorer cannot be started.
    """
    check_episode_rewards(config, task)
    pool = _make_pool(config, task)
    if not config.task.scorers:
        return pool
    return ScoredGraders(pool, config.task.scorers, scored_text_of(task))


def _make_retained(config: Config, section: Retained) -> RetainedTask | RetainedText:
    if section.task is None:
        return read_text(section, config)
    one_worker = config.graders.model_copy(update={"workers": 1})
    own = config.model_copy(update={"task": section.task, "graders": one_worker})
    task = fit_task(own, make_task(own.task))
    check_prompt_lengths(own, task)
    examples = task.examples("test")[: section.examples]
    every, decoding = config.held_out.every * section.every, held_out_decoding(own, task)
    return RetainedTask(every, task, examples, make_graders(own, task), decoding)


def _make_pool(config: Config, task: Task) -> GraderPool:
    """Start the pool of a task's own rewards: worker processes, if they can import them."""
    section = config.graders
    rubric = {part: task.rubric[part] for part in task.floor}
    if not rubric:
        return InProcessPool(task.grader, {}, {}, section.timeout_s)
    episodes = task if isinstance(task, EpisodeTask) else None
    grader = episodes.episode_grader if episodes else task.grader
    if isinstance(functions := own_grader(grader), FunctionRubric):
        has_scores = any(scorer.weight for scorer in config.task.scorers.values())
        functions = replace(functions, is_only_reward=not has_scores)
        stripper = grader if isinstance(grader, ThinkingStripper) else None
        grader = replace(stripper, function=functions) if stripper else functions
        if config.task.reward_functions and not can_be_imported(grader):
            warn_of_local_functions(functions.functions)
            return InProcessPool(grader, rubric, task.floor, section.timeout_s)
    kind: type[GraderPool] = GraderPool
    if getattr(task, "asks_endpoint", False):
        with serve_extra("task.kind=verifiers"):
            from germline.endpoint.episode_graders import EndpointGraders
        kind = EndpointGraders
    return kind(
        grader=grader,
        rubric=rubric,
        floor=task.floor,
        workers=section.workers,
        timeout_s=section.timeout_s,
        memory_gb=section.memory_gb,
        max_turns=episodes.max_turns if episodes else None,
        variables=section.variables,
    )


def make_engine(
    config: Config,
    *,
    searched: bool = True,
    generates: bool = True,
    ancestors: Sequence[Ancestor] = (),
) -> Engine:
    """Load the model into the engine that a config names, with the starting weights of a run.

    Args:
        config: config of the run.
        searched: whether members are evaluated; if not, the engine serves the center alone.
        generates: whether the engine generates; if not, only the masters are loaded, and no
            inference server is started.
        ancestors: the runs that led to the starting weights.
    """
    # An engine uses the run seed only for random starting values of theta.
    seed = ancestors[0].config.seed if ancestors else config.seed
    config = config.model_copy(update={"seed": seed})
    check_memory(config, searched=searched)
    engine: Engine = registry.create(
        "engine",
        config,
        model_source(config.model),
        make_space(config.space, config.seed) if searched else None,
        make_optimizer(config.optimizer, keeps_start=config.keeps_start),
        kind=config.engine.kind,
        generates=generates,
    )
    if ancestors:
        apply_ancestors(engine, ancestors)
    return engine


def apply_ancestors(engine: Engine, ancestors: Sequence[Ancestor]) -> None:
    """Update a freshly loaded engine to the weights that the ancestors led to.

    Every ancestor updated theta with its own optimizer, unit of sigma and strategy. So its journal
    is replayed, digests verified, by masters with its settings, which share their tensors with the
    masters of the engine. The state of an ancestor's optimizer is dropped: a run starts with theta
    alone. The seed of the first ancestor draws the parts of theta (the adapter, the directions of a
    subspace), and units such as mean |W| are measured on the base model, for all ancestors.
    """
    weights = engine.weights
    if not isinstance(weights, Masters):
        raise GermlineError(
            f"a fork needs an engine whose weights are germline.engines.master_weights.Masters, "
            f"found {type(weights).__name__}"
        )
    # All masters are made before the first update: their units are those of the base model.
    seed, base = ancestors[0].config.seed, weights.base.tensors
    line = [
        Masters(
            {info.name: weights.tensors[info.name] for info in base},
            base,
            make_space(ancestor.config.space, seed),
            make_optimizer(ancestor.config.optimizer, keeps_start=ancestor.config.keeps_start),
            ancestor.config.search.unit,
            weights.base.source,
        )
        for ancestor in ancestors
    ]
    for ancestor, masters in zip(ancestors, line, strict=True):
        strategy = strategy_of_run(ancestor.config, masters.dimension)
        restore(
            masters, ancestor.entries, None, ancestor.base_digest, ancestor.generation, strategy
        )
        for later in (*line, weights):
            for info in masters.searched:
                if later.tensors[info.name] is not masters.tensors[info.name]:
                    later.tensors[info.name].copy_(masters.tensors[info.name])
            # Theta is also the anchor of weight decay.
            later.optimizer.begin({info.name: later.tensors[info.name] for info in later.searched})
    engine.refresh()


def make_decoding(config: Config, task: Task) -> Decoding:
    """Return the decoding of the task, with the settings that the config overrides."""
    section = config.task
    return Decoding(
        max_new_tokens=section.max_new_tokens or task.max_new_tokens,
        temperature=section.temperature,
        top_p=section.top_p,
        stop=task.stop if section.stop is None else section.stop,
        noise_seed=config.seed,
    )


def held_out_decoding(config: Config, task: Task, temperature: float | None = None) -> Decoding:
    """Return the decoding of held-out completions; default: at `held_out.temperature`."""
    decoding = make_decoding(config, task)
    for given in (config.held_out.temperature, temperature):
        decoding = decoding if given is None else replace(decoding, temperature=given)
    return replace(decoding, noise_stream=HELD_OUT_NOISE)
