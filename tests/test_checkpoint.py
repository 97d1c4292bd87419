"""Rebuilding weights: from the journal alone, from snapshots, and never from the wrong thing."""

import stat
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from germline.checkpoint import drop_snapshots, list_snapshots, restore, save_snapshot
from germline.record import JournalEntry
from germline.run.build_parts import make_engine
from germline.strategies import make_strategy
from germline.types import GermlineError
from tests.toy_runs import settings

LENGTH = 7


class History:
    """A past of seven generations: its journal, its snapshots, its digests."""

    def __init__(self, folder, overrides=(), keep=100):
        self.config = settings(*overrides)
        self.folder = folder
        weights = self.base()
        self.base_digest = weights.digest()
        strategy = make_strategy(self.config.strategy, run_seed=0, generations=LENGTH)
        self.entries = []
        for generation in range(LENGTH):
            random = np.random.default_rng(generation)
            update = strategy.tell(strategy.ask(generation), random.normal(size=6))
            weights.apply(update)
            self.entries.append(JournalEntry(update, weights.digest()))
            if generation % 2:
                save_snapshot(weights, folder, generation)
                drop_snapshots(folder, generation, keep)

    def base(self):
        return make_engine(self.config).weights

    def rebuilt(self, generation, *, snapshots=True):
        folder = self.folder if snapshots else None
        return restore(self.base(), self.entries, folder, self.base_digest, generation)


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "snapshots", ["strategy.optimizer=adam"])


@pytest.mark.parametrize("generation", [-2, LENGTH, 100])
def test_a_generation_outside_the_journal_is_refused(history, generation):
    with pytest.raises(
        GermlineError, match=f"generation {generation} is not in the journal.* 0 to 6"
    ):
        history.rebuilt(generation)


def test_only_the_newest_snapshots_are_kept_and_torn_ones_are_none(tmp_path):
    history = History(tmp_path, keep=2)
    assert [path.name for path in list_snapshots(tmp_path)] == [
        "generation-000003.safetensors",
        "generation-000005.safetensors",
    ]
    assert all(path.stat().st_mode & stat.S_IRUSR for path in tmp_path.iterdir())
    assert history.rebuilt(2) == history.entries[2].digest
    (tmp_path / "generation-000006.partial").write_bytes(b"torn")
    assert len(list_snapshots(tmp_path)) == 2
    assert history.rebuilt(6) == history.entries[6].digest


def test_a_snapshot_is_used_only_when_it_saves_work(history):
    """From snapshot 5 one update leads to 6; a journal damaged before it does not matter then."""
    broken = replace(history.entries[2], update=history.entries[3].update)
    history.entries[2] = broken
    assert history.rebuilt(6) == history.entries[6].digest
    with pytest.raises(GermlineError, match="generation 6 was rebuilt with digest"):
        history.rebuilt(6, snapshots=False)


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 255
    path.write_bytes(bytes(content))


def change(path, changed):
    """Write the tensors of a snapshot again, as a function of their names and values."""
    save_file({name: one.copy() for name, one in changed(load_file(path)).items()}, path)


def without(tensors, ending):
    lost = next(name for name in tensors if name.endswith(ending))
    return {name: one for name, one in tensors.items() if name != lost}


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "a number": lambda path: flip(path, -3),
    "the header": lambda path: flip(path, 0),
    "no moment": lambda path: change(path, lambda all_: without(all_, ".m")),
    "no moments": lambda path: change(
        path, lambda all_: {name: one for name, one in all_.items() if name.endswith("weight")}
    ),
    "no tensor": lambda path: change(path, lambda all_: without(all_, "weight")),
    "shape": lambda path: change(path, lambda all_: {name: one[:1] for name, one in all_.items()}),
    "precision": lambda path: change(
        path, lambda all_: {name: one.astype(np.float16) for name, one in all_.items()}
    ),
    "another generation": lambda path: path.write_bytes(
        path.with_name("generation-000003.safetensors").read_bytes()
    ),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_snapshot_costs_time_only(history, damage):
    *others, newest = list_snapshots(history.folder)
    damage(newest)
    for generation in (5, 6):
        assert history.rebuilt(generation) == history.entries[generation].digest
    for path in others:
        path.unlink()
    assert history.rebuilt(6) == history.entries[6].digest  # from the base


def test_another_base_model_is_refused(history):
    weights = history.base()
    weights.tensors["embed.weight"][0, 0] += 1e-3
    with pytest.raises(GermlineError, match="the base model is not the one this run began with"):
        restore(weights, history.entries, history.folder, history.base_digest, 6)


def test_one_wrong_coefficient_is_noticed(history):
    update = history.entries[4].update
    nudged = (np.nextafter(np.float32(update.coefficients[0]), 1).item(), *update.coefficients[1:])
    history.entries[4] = replace(history.entries[4], update=replace(update, coefficients=nudged))
    with pytest.raises(GermlineError, match=r"generation 6 was rebuilt with digest .* changed"):
        history.rebuilt(6, snapshots=False)
