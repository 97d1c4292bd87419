"""Rebuilding weights: from the journal alone, from snapshots, and never from the wrong thing."""

import stat
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from germline.checkpoint import list_snapshots, restore, save_snapshot
from germline.noise import NOISE_VERSION
from germline.record import JournalEntry
from germline.run.build_parts import make_engine
from germline.strategies import make_strategy
from germline.types import GermlineError
from tests.toy_runs import settings

VARIANTS = [
    (space, optimizer)
    for space in ("space=full", "space=low_rank", "space.rank=3")
    for optimizer in ("strategy.optimizer=sgd", "strategy.optimizer=adam")
]
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
            self.entries.append(JournalEntry(update, weights.digest(), NOISE_VERSION))
            if generation % 2:
                save_snapshot(weights, folder, generation, keep=keep)

    def base(self):
        return make_engine(self.config).weights

    def rebuilt(self, generation, *, snapshots=True):
        folder = self.folder if snapshots else None
        return restore(self.base(), self.entries, folder, self.base_digest, generation)


@pytest.fixture(scope="module", params=VARIANTS, ids=lambda one: "-".join(one))
def variant(request, tmp_path_factory):
    return History(tmp_path_factory.mktemp("variant"), request.param)


@pytest.fixture
def history(tmp_path):
    return History(tmp_path / "snapshots", ["strategy.optimizer=adam"])


def test_the_journal_alone_rebuilds_every_generation(variant):
    for generation, entry in enumerate(variant.entries):
        assert variant.rebuilt(generation, snapshots=False) == entry.digest


def test_snapshots_give_the_same_bits(variant):
    for generation, entry in enumerate(variant.entries):
        assert variant.rebuilt(generation) == entry.digest


def test_all_generations_differ(variant):
    digests = {variant.base_digest, *(entry.digest for entry in variant.entries)}
    assert len(digests) == LENGTH + 1


def test_minus_one_is_the_base(history):
    assert history.rebuilt(-1) == history.base_digest


@pytest.mark.parametrize("generation", [-2, LENGTH, 100])
def test_a_generation_outside_the_journal_is_refused(history, generation):
    with pytest.raises(
        GermlineError, match=f"generation {generation} is not in the journal.* 0 to 6"
    ):
        history.rebuilt(generation)


def test_only_the_newest_snapshots_are_kept(tmp_path):
    history = History(tmp_path, keep=2)
    assert [path.name for path in list_snapshots(tmp_path)] == [
        "generation-000003.safetensors",
        "generation-000005.safetensors",
    ]
    assert history.rebuilt(2) == history.entries[2].digest


def test_a_snapshot_is_used_only_when_it_saves_work(history):
    """From snapshot 5 one update leads to 6; a journal damaged before it does not matter then."""
    broken = replace(history.entries[2], update=history.entries[3].update)
    history.entries[2] = broken
    assert history.rebuilt(6) == history.entries[6].digest
    with pytest.raises(GermlineError, match="generation 6 was rebuilt with digest"):
        history.rebuilt(6, snapshots=False)


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def flip_a_number(path):
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))


def flip_the_header(path):
    content = bytearray(path.read_bytes())
    content[0] ^= 255
    path.write_bytes(bytes(content))


def lose_a_moment(path):
    tensors = load_file(path)
    tensors.pop(next(name for name in tensors if name.endswith(".m")))
    save_file(tensors, path)


def lose_all_moments(path):
    save_file({name: one for name, one in load_file(path).items() if name.endswith("weight")}, path)


def lose_a_tensor(path):
    tensors = load_file(path)
    tensors.pop(next(name for name in tensors if name.endswith("weight")))
    save_file(tensors, path)


def other_shape(path):
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("weight"))
    save_file({**tensors, name: tensors[name][:1].copy()}, path)


def other_precision(path):
    save_file({name: one.astype(np.float16) for name, one in load_file(path).items()}, path)


def of_another_generation(path):
    path.write_bytes(path.with_name("generation-000003.safetensors").read_bytes())


def a_folder_in_its_place(path):
    path.unlink()
    path.mkdir()


DAMAGES = [
    cut,
    empty,
    flip_a_number,
    flip_the_header,
    lose_a_moment,
    lose_all_moments,
    lose_a_tensor,
    other_shape,
    other_precision,
    of_another_generation,
    a_folder_in_its_place,
]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_a_damaged_snapshot_costs_time_only(history, damage):
    damage(list_snapshots(history.folder)[-1])
    assert history.rebuilt(6) == history.entries[6].digest
    assert history.rebuilt(5) == history.entries[5].digest


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.__name__)
def test_with_no_usable_snapshot_the_base_is_where_replay_starts(history, damage):
    newest = list_snapshots(history.folder)[-1]
    damage(newest)
    for path in list_snapshots(history.folder)[:-1]:
        path.unlink()
    assert history.rebuilt(6) == history.entries[6].digest


def test_a_snapshot_half_written_by_a_killed_process_is_not_a_snapshot(history):
    (history.folder / "generation-000006.partial").write_bytes(b"torn")
    assert len(list_snapshots(history.folder)) == 3
    assert history.rebuilt(6) == history.entries[6].digest


def test_writing_a_snapshot_leaves_nothing_else_behind(history):
    assert [path.suffix for path in history.folder.iterdir()] == [".safetensors"] * 3
    assert all(path.stat().st_mode & stat.S_IRUSR for path in history.folder.iterdir())


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


def test_another_noise_version_is_refused(history):
    history.entries[3] = replace(history.entries[3], noise_version=NOISE_VERSION + 1)
    with pytest.raises(
        GermlineError, match=f"generation 3 was drawn with noise version {NOISE_VERSION + 1}"
    ):
        history.rebuilt(6, snapshots=False)


def test_a_rebuilt_optimizer_goes_on_as_if_it_had_never_stopped(history):
    weights = history.base()
    restore(weights, history.entries[:4], history.folder, history.base_digest, 3)
    for entry in history.entries[4:]:
        weights.apply(entry.update)
        assert weights.digest() == entry.digest
