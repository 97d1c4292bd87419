"""Train: the generation loop with recording, snapshots, held-out scores and early stopping."""

from __future__ import annotations  # help() shows the names of types as they are written here

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from germline.checkpoint import recall_updates
from germline.config import Config, InProcess
from germline.evaluation import HELD_OUT_NOISE, score_center
from germline.fleet.engine_queries import DimensionQuery
from germline.graders.reward_functions import Rewards
from germline.random_walk import RandomWalk
from germline.record import RunDirectory
from germline.record.ancestry import Ancestor, inherited_walk
from germline.record.best_generation import early_stop
from germline.record.new_directory import choose_directory
from germline.record.tensorboard import TensorBoard
from germline.report.html_page import write_report
from germline.run.build_fleet import engine_threads
from germline.run.build_parts import RunParts, build_run_parts
from germline.run.callbacks import Callback, CallbackList
from germline.run.inputs_from_python import NOTHING_GIVEN, RunInputs, read_run_inputs
from germline.run.loaded_model import with_model_folder
from germline.run.machine_limits import check_disk
from germline.run.peak_memory import peak_memory_mb
from germline.run.resumed_config import entries_to_resume, resumed_config, warn_of_unasked_scorers
from germline.run.reward_check import check_custom_reward, with_digest
from germline.run.shared_cores import SharedCores
from germline.run.snapshot_policy import SnapshotPolicy, snapshots_to_keep
from germline.run.training_warnings import FindingLog, warn_of_held_out
from germline.run.validate_args import validate_path
from germline.signal_metrics import SignalMetrics
from germline.signal_types import SigmaTrial
from germline.tasks.python_inputs import RowsLike
from germline.types import Example, GenerationRecord, GermlineError, HeldOutScore, Rollout

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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

    def __init__(
        self,
        parts: RunParts,
        directory: RunDirectory,
        first: int,
        inputs: RunInputs | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.directory = directory
        self.config = parts.config
        self._parts = parts
        self._inputs = inputs  # holds the copy of a loaded model
        self._callbacks = CallbackList(callbacks)
        self._first = first
        self._stopping = False
        self._begun = False
        parts.graders.redirect_output(directory.grader_output)
        self.on_trial: Callable[[SigmaTrial], None] = lambda _trial: None
        self._snapshots = SnapshotPolicy(
            self.config.record.snapshot_every,
            snapshots_to_keep(self.config, parts.fleet.query(DimensionQuery())),
            partial(parts.fleet.save_snapshot, directory.snapshots),
        )
        self._examples = parts.task.examples("test")[: parts.config.held_out.examples]

    @property
    def start(self) -> HeldOutScore | None:
        """Held-out score before the first update."""
        return next(
            (one.score for one in self.directory.held_out() if not one.score.generation), None
        )

    @property
    def end(self) -> HeldOutScore | None:
        """Held-out score of the final weights.

        Where `stop()` or an early stop ended the run, these are the weights of its last generation,
        and None where they were not scored.
        """
        ended = self.directory.stopped_early or self._stopping
        last = self.directory.journal.last_generation() + 1 if ended else self.config.generations
        if not last:
            return None
        return next(
            (one.score for one in self.directory.held_out() if one.score.generation == last), None
        )

    def __repr__(self) -> str:
        """Say what is trained, where, and how far it is."""
        done, asked = self.directory.journal.last_generation() + 1, self.config.generations
        if self.directory.stopped_early:
            state = f"stopped early after generation {done - 1}"
        elif done == asked and self.end is not None:
            state = f"finished, {asked} generations"
        elif self._begun:
            state = f"{done} of {asked} generations done"
        else:
            past = f"{done} of {asked} generations done, " if done else ""
            state = f"{past}nothing ran yet: iterate it, or call run()"
        what = f"model={self.config.model}, task={self.config.task.title}"
        return f"<Training {self.directory.path}: {what}; {state}>"

    def run(self) -> "Training":
        """Train all generations, as a loop over them would; return this training.

        Raises:
            GermlineError: see `__iter__`.
        """
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
            tracker = self._tracker(cleanup)
            if self._first == 0 and self.start is None:
                self._write_held_out(0, tracker)
            if not self._stopping:
                with suppress(_StoppedInCalibration):
                    yield from self._generations(tracker)
            done = self.directory.journal.last_generation() + 1
            if self.directory.stopped_early or (
                done == self.config.generations and self.end is None
            ):
                # Also after an early stop: this score has completions, which a report shows.
                self._write_held_out(done, tracker)
            draw_evolution(self.directory)
        # After the lock is released, as the report states whether the run is active.
        write_report(self.directory.path)
        self._callbacks.call("on_end", self)

    def _write_held_out(self, done: int, tracker: TensorBoard | None) -> None:
        score, completions, examples = self._score(done)
        warn_of_held_out(self._parts.task, completions, done)
        self.directory.write_held_out(score, completions, examples)
        if tracker:
            tracker.held_out(score)
        self._callbacks.call("on_held_out", score)

    def _generations(self, tracker: TensorBoard | None) -> Iterator[GenerationRecord]:
        parts, record = self._parts, self.config.record
        span = range(self._first, self.config.generations)
        inherited = inherited_walk(self.directory.ancestors, self.config.search.unit)
        diagnosis = SignalMetrics(
            walk=RandomWalk(self.config.optimizer, inherited),
            on_trial=self._trial,
            is_zero=parts.method.is_zero_signal,
        )
        updates = [entry.update for entry in self.directory.journal.read()]
        diagnosis.recall(updates)
        scores = [row.score for row in self.directory.held_out()]
        cores = SharedCores(self.config)
        finding_log = FindingLog(self.directory)
        for one in parts.generations(span, diagnosis):
            done = one.generation + 1
            final = done == span.stop
            if done % self.config.held_out.every == 0 and not final:
                one = self._with_score(one, done)
            scores += [one.held_out] if one.held_out else []
            early = early_stop(scores, self.config.held_out.patience) is not None
            last = final or self._stopping or early
            row = self.directory.write(one, parts.batch(one.generation), peak_memory_mb())
            cores.tell()
            finding_log.tell(row)
            if tracker:
                tracker.generation(one)
            saved = last or self._snapshots.is_due(done)
            if saved:
                self._snapshots.write(one.generation)
            if done % record.figure_every == 0 and not last:
                draw_evolution(self.directory)
            self._callbacks.call("on_generation", one)
            if one.held_out:
                self._callbacks.call("on_held_out", one.held_out)
            yield one
            if early or self._stopping:
                if not saved:  # stopped between generations
                    self._snapshots.write(one.generation)
                return

    def _trial(self, trial: SigmaTrial) -> None:
        """Show a trial of the calibration; a stop before the first generation ends it there."""
        if self._stopping and self.directory.journal.last_generation() < 0:
            raise _StoppedInCalibration
        self.on_trial(trial)

    def _with_score(self, record: GenerationRecord, done: int) -> GenerationRecord:
        started = time.perf_counter()
        score = self._score(done)[0]
        timing = {**record.timing, "held_out_s": time.perf_counter() - started}
        return replace(record, held_out=score, timing=timing)

    def _score(self, generation: int) -> tuple[HeldOutScore, Sequence[Rollout], Sequence[Example]]:
        parts = self._parts
        sampling_noise = replace(parts.decoding, noise_stream=HELD_OUT_NOISE)
        score, evaluation = score_center(
            partial(parts.method.evaluate_center, parts.fleet),
            parts.task,
            self._examples,
            sampling_noise,
            generation,
            parts.held_out_scorers,
        )
        if rows := parts.method.ensemble_rows():
            self.directory.write_ensemble(generation, rows)
        return score, evaluation.rollouts, self._examples

    def _tracker(self, cleanup: ExitStack) -> TensorBoard | None:
        if not self.config.record.tensorboard:
            return None
        tracker = TensorBoard(self.directory.tensorboard, self._first)
        cleanup.callback(tracker.close)
        return tracker


def train(
    config: Config | Mapping[str, Any] | Path | str,
    out: Path | str | None = None,
    *,
    reward: Rewards | None = None,
    data: RowsLike | Mapping[str, RowsLike] | None = None,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    callbacks: Sequence[Callback] = (),
) -> Training:
    """Begin a run: load the objects of a config, make the run directory, return the training.

    Nothing is trained until the training is iterated, or its `run` is called.

    Args:
        config: a Config, a mapping of settings, or the path of a YAML file.
        out: the run directory; by default a new one under `runs/`.
        reward: a function of (completion, example) or of (completions, **columns) as in TRL, a list
            of them, or functions with their weights; instead of the task's own rewards.
        data: rows with `prompt` and perhaps `answer`: a list, a `datasets.Dataset`, a pandas
            `DataFrame`, or a mapping with `train` and `test` of these; instead of `task`.
        model: a loaded model, of which a copy is trained; instead of the config's `model`.
        tokenizer: of the loaded model.
        callbacks: functions of a `GenerationRecord`, or objects with `on_generation(record)`,
            `on_held_out(score)` or `on_end(training)`.

    Raises:
        GermlineError: a setting is wrong, the model or task cannot be loaded, or the directory is
            not empty.
    """
    inputs = read_run_inputs(reward, data, model, tokenizer)
    return begin_run(inputs.configure(config), out, inputs=inputs, callbacks=callbacks)


def begin_run(
    config: Config,
    out: Path | str | None = None,
    ancestors: Sequence[Ancestor] = (),
    inputs: RunInputs = NOTHING_GIVEN,
    callbacks: Sequence[Callback] = (),
) -> Training:
    """Begin a run from the base model, or from the weights that other runs led to.

    Args:
        config: the config of the run.
        out: the run directory; by default a new one under `runs/`.
        ancestors: those runs, the first one first; see `fork`.
        inputs: what was given from Python.
        callbacks: see `train`.

    Raises:
        GermlineError: the model or task cannot be loaded, or the directory is not empty.
    """
    CallbackList(callbacks)  # refused before anything is loaded
    config = config.with_absolute_paths()
    loadable = with_model_folder(config, inputs.model)
    path = choose_directory(loadable, None if out is None else validate_path("out", out))
    check_disk(loadable, path)
    parts = build_run_parts(loadable, ancestors, inputs.task)
    try:
        check_custom_reward(parts.config, parts.task, parts.graders)
        parts = replace(parts, config=with_digest(parts.config, parts.task))
        parts.held_out_scorers.check(_held_out_examples(parts))
        config = parts.config.model_copy(update={"model": config.model})
        directory = RunDirectory.create(
            path, config, parts.fleet.digest(), engine_threads(config), ancestors
        )
    except BaseException:
        parts.close()
        raise
    return Training(replace(parts, config=config), directory, 0, inputs, callbacks)


def resume(
    path: Path | str,
    overrides: Sequence[str] = (),
    *,
    reward: Rewards | None = None,
    data: RowsLike | Mapping[str, RowsLike] | None = None,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    callbacks: Sequence[Callback] = (),
) -> Training:
    """Continue a stopped or killed run, to the same bits as if it had never stopped.

    Args:
        path: the run directory.
        overrides: settings that a resumed run may change, such as `generations=100`.
        reward: what was given to `train`, as for `data`, `model` and `tokenizer`.
        data: see `reward`.
        model: see `reward`.
        tokenizer: see `reward`.
        callbacks: see `train`.

    Raises:
        GermlineError: an override would make it another run, or the weights cannot be loaded.
    """
    directory = RunDirectory.open(validate_path("path", path))
    recorded = directory.config
    config = resumed_config(recorded, overrides)
    inputs = read_run_inputs(reward, data, model, tokenizer)
    loadable = with_model_folder(config, inputs.model)
    with ExitStack() as on_error:
        directory.acquire_lock()
        on_error.callback(directory.release_lock)
        entries = entries_to_resume(directory, config)
        check_disk(loadable, directory.path)
        threads = directory.environment["threads"]
        parts = build_run_parts(_with_threads(loadable, threads), directory.ancestors, inputs.task)
        on_error.callback(parts.close)
        parts.held_out_scorers.check(_held_out_examples(parts), recorded.held_out.scorers)
        complete = recall_updates(parts.method.recall, entries)
        parts.restore(complete, directory.snapshots, directory.base_digest)
        directory.journal.cut(len(entries))
        directory.truncate(len(entries) - 1)
        directory.update_config(config)
        parts = replace(parts, config=config)
        training = Training(parts, directory, len(entries), inputs, callbacks)
        on_error.pop_all()
    if training.end is not None:
        warn_of_unasked_scorers(directory.path, recorded, config)
    return training


def _held_out_examples(parts: RunParts) -> Sequence[Example]:
    return parts.task.examples("test")[: parts.config.held_out.examples]


def draw_evolution(directory: RunDirectory) -> None:
    """Draw `evolution.png`; importing matplotlib, 0.35 s, does not delay the first generation."""
    from germline.report import matplotlib_plots

    matplotlib_plots.draw_evolution(directory)


def _with_threads(config: Config, recorded: int) -> Config:
    """Use the number of threads the run began with, as another number may round differently."""
    if not isinstance(config.engine, InProcess) or config.engine.threads is not None:
        return config
    engine = config.engine.model_copy(update={"threads": recorded})
    return config.model_copy(update={"engine": engine})
