"""A training: the generation loop of a run, its held-out scores, and the observers it calls.

It measures what a run spends: rollouts, tokens, floating point operations (FLOPs) and time. With N
weights that a token is multiplied by, of which d are searched, F tokens read or generated, and B
tokens of texts whose gradient was computed,

    (1)  forward FLOPs   2 N (F + B)
    (2)  backward FLOPs  2 (N + d) B

so a token costs 2 N forwards and, where all weights are trained, 4 N backwards (Kaplan et al. 2020,
arXiv 2001.08361). Not counted are attention over the context, the noise of members, and passes of
other models (`task.kl_coef`, reward models). Of a mixture of experts, all experts count.

Training and held-out scores are counted apart.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import psutil

from germline.evaluation import score_center
from germline.evaluation.behavior import answers_of, behavior, recorded_answers
from germline.fleet import Fleet
from germline.fleet.worker_jobs import LARGE_SIGMA, dimension, members_differ, used_weights
from germline.generation_loop import generations
from germline.record import RunDirectory
from germline.record.early_stopping import Spent, reached_limit
from germline.record.journal import inherited_walk
from germline.report.findings import Finding
from germline.run.build_parts import RunParts, held_out_decoding
from germline.run.evaluation_cache import kept_divergences, shared_rollouts
from germline.run.observers import FindingLog, Observer, Snapshots, peak_memory_mb, write_pages
from germline.run.trackers import TensorBoard, WandbTracker
from germline.signal_metrics import RandomWalk, SignalMetrics
from germline.types import GenerationRecord, GermlineError, HeldOutScore, Rollout, SigmaTrial

COUNTED = ("rollouts", "tokens", "forward_tokens")
"""What a fleet counts."""

OF_METHOD = ("forward_tokens", "backward_tokens")
"""Metrics of a method that are counted: see `methods.method.Learned`."""


class _StoppedInCalibration(Exception):
    """A training was stopped while sigma was calibrated for its first generation."""


class Training:
    """A training run; iterating it trains and yields the record of each generation.

    `run` trains without a loop.

    Attributes:
        directory: the run directory.
        config: the resolved config.
        start: held-out score of the weights before generation 0.
        end: held-out score of the final weights, once the last generation has run, or where the run
            was stopped; None where these weights were not scored.
        on_trial: called before and after each sigma that calibration tries.
    """

    def __init__(self, parts: RunParts, directory: RunDirectory) -> None:
        self.directory = directory
        self.config = directory.config
        self._meter = BudgetMeter(parts.fleet, directory.spent)
        self._parts = parts
        self._first = directory.journal.last_generation() + 1
        if self.config.record.shared and not self._first:
            parts.fleet.shared = shared_rollouts(parts.fleet, directory)
        self._stopping = False
        self._begun = False
        for graders in parts.all_graders:
            graders.redirect_output(directory.grader_output)
        self.on_trial: Callable[[SigmaTrial], None] = lambda _trial: None
        self._finding_log = FindingLog(directory)
        self._latest: tuple[HeldOutScore, Sequence[Rollout]] | None = None

    @property
    def findings(self) -> Sequence[Finding]:
        """Warnings about the numbers of the latest generations."""
        return self._finding_log.findings

    @property
    def start(self) -> HeldOutScore | None:
        """Held-out score before the first update."""
        return self._score_after(0)

    @property
    def end(self) -> HeldOutScore | None:
        """Held-out score of the final weights.

        Where `stop()` or a setting ended the run earlier, these are the weights of its last
        generation, and None where they were not scored.
        """
        ended = self.directory.stopped_by or self._stopping
        last = self.directory.journal.last_generation() + 1 if ended else self.config.generations
        return self._score_after(last) if last else None

    def _score_after(self, updates: int) -> HeldOutScore | None:
        scores = (row.score for row in self.directory.held_out())
        return next((score for score in scores if score.generation == updates), None)

    def __repr__(self) -> str:
        """Say what is trained, where, and how far it is."""
        done, total = self.directory.journal.last_generation() + 1, self.config.generations
        what = f"model={self.config.model}, task={self.config.task.title}"
        return f"<Training {self.directory.path}: {what}; {done} of {total} generations done>"

    def run(self) -> "Training":
        """Train all generations, as a loop over them would; return this training."""
        for _ in self:
            pass
        return self

    def stop(self) -> None:
        """Finish the current generation, write everything, and end; no generation is begun."""
        self._stopping = True

    def __iter__(self) -> Iterator[GenerationRecord]:
        """Train and yield each generation once it is on disk; can be iterated once.

        Raises:
            GermlineError: this training was iterated before, or too many rewards are missing.
        """
        if self._begun:
            raise GermlineError(
                "this training was iterated before; continue it with "
                f"germline.resume({str(self.directory.path)!r})"
            )
        self._begun = True
        with ExitStack() as cleanup:
            cleanup.enter_context(self._parts)
            cleanup.callback(self.directory.release_lock)
            observers: list[Observer] = [self._finding_log]
            if self.config.record.tensorboard:
                observers.append(TensorBoard(self.directory.tensorboard, self._first))
            if self.config.record.wandb:
                observers.append(WandbTracker(self.directory))
            observers.append(Snapshots(self.directory, self._parts.fleet))
            for observer in observers:
                cleanup.callback(observer.close)
            if self._first == 0 and self.start is None:
                self._check_that_members_differ()
                self._tell_held_out(0, observers)
            if not self._stopping:
                with suppress(_StoppedInCalibration):
                    yield from self._generations(observers)
            self._tell_stop(observers)
            done = self.directory.journal.last_generation() + 1
            if self.directory.stopped_by or (done == self.config.generations and self.end is None):
                # Also after an early stop: this score has completions, which a report shows.
                self._tell_held_out(done, observers)
        # After the lock is released, as the report states whether the run is active.
        write_pages(self.directory)

    def _check_that_members_differ(self) -> None:
        """Ask an engine whether it applies noise, whatever an earlier calibration has measured.

        Inference engines ignore adapters of layers that they do not support, some without an error.
        """
        config = self.config
        query = partial(members_differ, config.seed)
        sigma = getattr(config.strategy, "sigma", LARGE_SIGMA)
        if config.method.member_sigmas(sigma) and not self._parts.fleet.query(query):
            raise GermlineError(
                f"engine.kind={config.engine.kind}: two members with opposite noise of sigma "
                f"{LARGE_SIGMA:g} write the same text with the same log-probabilities, so no "
                "reward can differ: check space.include, space.exclude and space.layers, or use "
                "engine.kind=inprocess or another version of the inference engine"
            )

    def _tell_held_out(self, done: int, observers: Sequence[Observer]) -> None:
        score, rollouts = self._score(done, is_end=True)
        self.directory.write_held_out(score, rollouts, self._parts.held_out_examples)
        for observer in observers:
            observer.on_held_out(score, rollouts)

    def _tell_stop(self, observers: Sequence[Observer]) -> None:
        for observer in observers:
            observer.on_stop()

    def _generations(self, observers: Sequence[Observer]) -> Iterator[GenerationRecord]:
        span, has_limits = range(self._first, self.config.generations), self.config.budget.limits
        inherited = inherited_walk(self.directory.ancestors, self.config.search.unit)
        diagnosis = SignalMetrics(
            walk=RandomWalk(self.config.optimizer, inherited),
            on_trial=self._trial,
            is_zero=self._parts.method.is_zero_signal,
        )
        diagnosis.recall([entry.update for entry in self.directory.journal.read()])
        self._meter.restart()
        keep = kept_divergences(self.directory, self._parts.task)
        parts, fleet = self._parts, self._parts.fleet
        loop = generations(parts.method, fleet, parts.batch, parts.decoding, span, diagnosis, keep)
        for record in loop:
            fleet.shared = None  # after an update, runs differ
            if shared := fleet.counts["shared_rollouts"]:
                metrics = {**record.strategy_metrics, "shared_rollouts": shared}
                record = replace(record, strategy_metrics=metrics)
            self._meter.training(record.strategy_metrics)
            done = record.generation + 1
            if done % self.config.held_out.every == 0 and done < span.stop:
                started = time.perf_counter()
                score = self._score(done, is_end=False)[0]
                timing = {**record.timing, "held_out_s": time.perf_counter() - started}
                record = replace(record, held_out=score, timing=timing)
            record = replace(record, budget=self._meter.spent())
            if has_limits:
                self._stopping |= reached_limit(self.config.budget, record.budget) is not None
            batch = parts.batch(record.generation)
            self.directory.write(record, batch, peak_memory_mb())
            for observer in observers:
                observer.on_generation(record)
            if record.held_out:
                for observer in observers:
                    observer.on_held_out(record.held_out)
                self._stopping |= self.directory.stopped_by is not None
            if self._stopping:
                self._tell_stop(observers)  # before the caller, who may leave the loop
            yield record
            if self._stopping:
                return
            self._meter.restart()

    def _trial(self, trial: SigmaTrial) -> None:
        """Show a trial of the calibration; a stop before the first generation ends it there."""
        if self._stopping and self.directory.journal.last_generation() < 0:
            raise _StoppedInCalibration
        self.on_trial(trial)

    def _score(self, generation: int, *, is_end: bool) -> tuple[HeldOutScore, Sequence[Rollout]]:
        parts = self._parts
        known, names = self._latest, parts.retained.keys()
        if known and known[0].generation == generation and known[0].retained.keys() == names:
            return known  # the run ends with a generation that was scored
        self._meter.restart()
        score, evaluation = score_center(
            partial(parts.method.evaluate_center, parts.fleet),
            parts.task,
            parts.held_out_examples,
            held_out_decoding(parts.config, parts.task),
            generation,
            parts.held_out_scorers,
        )
        retained = {
            name: one.score(parts.fleet, generation)
            for name, one in parts.retained.items()
            if is_end or generation % one.every == 0
        }
        self._meter.held_out()
        score = replace(score, retained=retained)
        if rows := parts.method.ensemble_rows():
            self.directory.write_ensemble(generation, rows)
        if answers := answers_of(evaluation.rollouts, parts.held_out_examples):
            # As recorded, so that a resumed run compares with the same answers.
            scored = self.directory.held_out()
            start = recorded_answers(scored[0].samples) if scored else answers
            score = replace(score, behavior=behavior(answers, start))
        self._latest = score, evaluation.rollouts
        return self._latest


class BudgetMeter:
    """Counts from one lap to the next.

    Args:
        fleet: what the run generates and scores with.
        earlier: what the run spent before it was stopped.
    """

    def __init__(self, fleet: Fleet, earlier: Spent) -> None:
        self._fleet = fleet
        self._weights = fleet.query(used_weights)
        self._searched = fleet.query(dimension)
        self._training = {name: value for name, value in earlier.items() if name != "held_out"}
        self._held_out = dict(earlier.get("held_out", {}))
        self.restart()

    def restart(self) -> None:
        """Leave out what was spent since the last lap, such as on snapshots and figures."""
        self._fleet.counts.clear()
        self._cpu_s, self._wall_s = _cpu_s(), time.perf_counter()

    def training(self, metrics: Mapping[str, Any]) -> None:
        """Count a generation: what was spent since the last lap, and what its method reports."""
        self._lap(self._training, {name: int(metrics.get(name) or 0) for name in OF_METHOD})

    def held_out(self) -> None:
        """Count a held-out score."""
        self._lap(self._held_out, {})

    def spent(self) -> dict[str, Any]:
        """Return what was spent so far, as the field `budget` of a generation's row."""
        return {**self._training, "held_out": dict(self._held_out)}

    def _lap(self, total: dict[str, Any], reported: Mapping[str, int]) -> None:
        cpu_s, wall_s = _cpu_s(), time.perf_counter()
        counts = {name: self._fleet.counts[name] for name in COUNTED}
        self._fleet.counts.clear()
        backward = reported.get("backward_tokens", 0)
        counts["forward_tokens"] += reported.get("forward_tokens", 0) + backward
        added: dict[str, float] = {
            **counts,
            "forward_flops": 2.0 * self._weights * counts["forward_tokens"],
            "cpu_s": max(0.0, cpu_s - self._cpu_s),
            "wall_s": wall_s - self._wall_s,
        }
        if reported:
            added["backward_tokens"] = backward
            added["backward_flops"] = 2.0 * (self._weights + self._searched) * backward
        for name, value in added.items():
            total[name] = total.get(name, 0) + value
        self._cpu_s, self._wall_s = cpu_s, wall_s


def _cpu_s() -> float:
    """Return the processor time of this process and of all below it, such as graders and engines.

    Processes on other machines are not counted.
    """
    total = sum(os.times()[:4])  # with the children that ended
    for child in psutil.Process().children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:  # it ended in between
            continue
    return total
