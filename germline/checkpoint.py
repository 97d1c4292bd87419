"""Rebuild the weights of any generation: a snapshot or the base model, plus the journal replayed.

Every rebuilt generation is compared with the digest in its journal line. So a wrong base model, a
damaged snapshot or different arithmetic stops with an error.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from germline.optimizers.base import StoredState
from germline.protocols import MasterWeights, Strategy
from germline.record import JournalEntry
from germline.record.atomic_files import atomic_replace
from germline.types import GermlineError, MeanUpdate, Update

Updates = Sequence[Update | MeanUpdate]


def save_snapshot(weights: MasterWeights, folder: Path, generation: int) -> Path:
    """Write masters and moments after `generation`, atomically.

    Raises:
        GermlineError: writing fails, as on a full disk; no incomplete snapshot is left.
    """
    tensors = {name: tensor.contiguous() for name, tensor in weights.state().items()}
    return commit_snapshot(partial(save_file, tensors), folder, generation)


def commit_snapshot(write: Callable[[Path], object], folder: Path, generation: int) -> Path:
    """Call a function that writes the snapshot of `generation`."""
    path = folder / f"generation-{generation:06d}.safetensors"
    unfinished = path.with_suffix(".partial")
    with atomic_replace(path, unfinished):
        folder.mkdir(parents=True, exist_ok=True)
        write(unfinished)
    return path


def drop_snapshots(folder: Path, newest: int, keep: int, best: int | None = None) -> None:
    """Drop all snapshots but the last `keep` up to generation `newest`, and that of `best`.

    Those after `newest` are of a journal that lost its last lines, and of no use.
    """
    kept = [one for one in snapshot_generations(folder) if one <= newest][-keep:]
    for path in list_snapshots(folder):
        if _generation_of(path) not in (*kept, best):
            path.unlink()


def list_snapshots(folder: Path) -> list[Path]:
    """List complete snapshots, oldest first."""
    return sorted(folder.glob("generation-*.safetensors"))


def restore(
    weights: MasterWeights,
    entries: Sequence[JournalEntry],
    folder: Path | None,
    base_digest: str,
    generation: int,
    strategy: Strategy | None = None,
) -> str:
    """Bring base weights to the state after `generation` (-1: the base); return its digest.

    Args:
        weights: the base model's weights, freshly loaded.
        entries: the journal, generation 0 first.
        folder: folder of the snapshots; None uses the journal alone.
        base_digest: digest recorded when the run began.
        generation: the last update to include.
        strategy: in its state before generation 0; needed if the journal holds utilities, from
            which the strategy computes the step again.

    Raises:
        GermlineError: the base model is another one, the journal is too short, or a digest differs.
    """
    if not -1 <= generation < len(entries):
        raise GermlineError(
            f"generation {generation} is not in the journal: this run has generations "
            f"0 to {len(entries) - 1}"
        )
    base = weights.digest()
    if base != base_digest:
        raise GermlineError(
            f"the base model is not the one this run began with: its digest is {base[:16]}, "
            f"the run recorded {base_digest[:16]}. Give the original model (and the adapter of "
            "space.init_adapter, if the run has one)"
        )
    start = _load_newest(weights, entries, folder, generation) if folder else -1
    included = entries[: generation + 1]
    if strategy and start < generation:
        included = with_steps(included, strategy)
    for entry in included[start + 1 :]:
        if follows_gradients([entry]):
            raise _without_snapshot(folder, generation)
        weights.apply(entry.update)
    digest = weights.digest()
    check_digest(generation, digest, entries[generation].digest if generation >= 0 else base)
    return digest


def check_digest(generation: int, digest: str, recorded: str) -> None:
    """Refuse weights that were rebuilt with another digest than the journal has."""
    if digest != recorded:
        raise GermlineError(
            f"generation {generation} was rebuilt with digest {digest[:16]}, but the journal says "
            f"{recorded[:16]}: the journal or a snapshot was changed, or this machine's arithmetic "
            "differs"
        )


def recall_updates(
    recall: Callable[[Updates], Updates], entries: Sequence[JournalEntry]
) -> list[JournalEntry]:
    """Let a strategy or a method recall the updates of a journal; return complete entries."""
    updates = recall([entry.update for entry in entries])
    return [replace(entry, update=update) for entry, update in zip(entries, updates, strict=True)]


def with_steps(entries: Sequence[JournalEntry], strategy: Strategy) -> Sequence[JournalEntry]:
    """Return the entries of a journal; a strategy computes the steps of those with utilities."""
    if not any(isinstance(entry.update, MeanUpdate) for entry in entries):
        return entries
    return recall_updates(strategy.recall, entries)


def _without_snapshot(folder: Path | None, generation: int) -> GermlineError:
    found = [one for one in (snapshot_generations(folder) if folder else ()) if one != generation]
    remedy = "`germline resume` trains it again"
    if found:
        remedy = f"name a generation that has one: {', '.join(map(str, found))}"
    return GermlineError(
        f"generation {generation} followed gradients found by backpropagation, which seeds cannot "
        f"repeat, and there is no usable snapshot of it; {remedy}"
    )


def snapshot_generations(folder: Path) -> list[int]:
    """List the generations of the complete snapshots, oldest first."""
    return [_generation_of(path) for path in list_snapshots(folder)]


def newest_snapshot(folder: Path, last: int | None = None) -> int:
    """Return the generation of the newest snapshot up to generation `last`, -1 without one."""
    found = snapshot_generations(folder)
    return max((one for one in found if last is None or one <= last), default=-1)


def last_restorable_generation(entries: Sequence[JournalEntry], folder: Path) -> int:
    """Return the newest generation that can be rebuilt; a gradient needs a snapshot after it.

    Without a snapshot this returns the last generation, for which `restore` raises the error.
    """
    last = len(entries) - 1
    if not follows_gradients(entries):
        return last
    kept = newest_snapshot(folder, last)
    return kept if kept >= 0 else last


def follows_gradients(entries: Sequence[JournalEntry]) -> bool:
    """Whether an update is a gradient, which seeds cannot repeat."""
    return any(isinstance(one.update, Update) and one.update.backpropagated for one in entries)


def _generation_of(snapshot: Path) -> int:
    return int(re.sub(r"\D", "", snapshot.stem))


def _load_newest(
    weights: MasterWeights, entries: Sequence[JournalEntry], folder: Path, generation: int
) -> int:
    """Load the newest usable snapshot up to `generation`; return its generation, or -1 (the base).

    If a snapshot cannot be read, or its digest differs from the journal, an older one is used.
    """
    for path in reversed(list_snapshots(folder)):
        number = _generation_of(path)
        if number > generation:
            continue
        try:
            with safe_open(path, framework="pt") as file:
                state = StoredState(file.get_tensor, file.keys())
                if weights.digest(state) == entries[number].digest:
                    weights.load_state(state)
                    return number
        except (SafetensorError, OSError, ValueError, GermlineError):
            continue
    return -1
