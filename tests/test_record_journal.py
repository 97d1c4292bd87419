"""The journal: what it holds reads back to the bit, and damage is never overlooked."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import germline
from germline.record import Journal
from germline.report.run_facts import RunFacts
from germline.run.inference import open_evaluation
from germline.types import GermlineError, MeanUpdate, SigmaUpdate, Update
from tests.synthetic_runs import DIGEST, update
from tests.toy_runs import journal, run


def written(path: Path, generations: int) -> Journal:
    journal = Journal(path)
    for generation in range(generations):
        journal.append(update(generation), DIGEST)
    return journal


def test_a_journal_reads_back_to_the_same_bits(tmp_path: Path) -> None:
    awkward = (0.1, 1 / 3, -0.0, 5e-324, 1.7976931348623157e308, math.pi)
    one = Update(-(2**70), 0, 2**-40, 1e-3, awkward)
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append(one, DIGEST, missing=2)
    entry = Journal(tmp_path / "journal.jsonl").read()[0]
    assert entry.update == one
    assert np.array(entry.update.coefficients).tobytes() == np.array(awkward).tobytes()
    assert (entry.digest, entry.missing) == (DIGEST, 2)


def test_the_last_generation_of_an_empty_journal_is_minus_one(tmp_path: Path) -> None:
    assert Journal(tmp_path / "none.jsonl").last_generation() == -1
    assert written(tmp_path / "j", 3).last_generation() == 2


def test_a_torn_last_line_counts_as_never_written(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, 3)
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        assert Journal(path).last_generation() == 1
        assert path.stat().st_size == cut, "reading must not write"
        Journal(path).append(update(2), DIGEST)
        assert path.read_bytes() == whole


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, 2)
    whole = path.read_bytes()
    for place in range(len(whole) - 1):  # a lost last newline is a torn line, not damage
        for mask in (1, 32):  # 32 turns 1e-05 into 1E-05, which parses to the same number
            damaged = bytearray(whole)
            damaged[place] ^= mask
            path.write_bytes(damaged)
            with pytest.raises(GermlineError, match=r"j, line \d: .*; restore"):
                Journal(path).read()


def test_a_missing_generation_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "j"
    written(path, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1] + lines[3])
    with pytest.raises(GermlineError, match="j, line 3: found generation 3 in place of 2"):
        Journal(path).read()


def test_an_unknown_noise_version_is_refused(tmp_path, monkeypatch):
    written(tmp_path / "j", 1)
    monkeypatch.setattr("germline.record.journal.NOISE_VERSION", 2)
    with pytest.raises(GermlineError, match="noise version 1 is not known"):
        Journal(tmp_path / "j").read()


def test_only_the_next_generation_can_be_appended(tmp_path: Path) -> None:
    journal = written(tmp_path / "j", 2)
    for generation in (0, 1, 3):
        with pytest.raises(GermlineError, match=f"generation {generation} cannot follow"):
            journal.append(update(generation), DIGEST)
    assert journal.last_generation() == 1


def with_state(values: Mapping[str, object]) -> Update:
    return Update(0, 0, 0.1, 0.2, (0.3,), strategy_state=values)


EARLIER_LINE = (
    b'{"backpropagated":true,"checksum":"fabff58f192a8362","choices":[[0.25,0.75],[1.0]],'
    b'"coefficients":[0.5,-0.25],'
    b'"digest":"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",'
    b'"fitness":0.5,"generation":0,"learning_rate":0.2,"noise_version":1,'
    b'"power":{"noise":0.25,"total":1.5},"run_seed":3,"sigma":0.1,"skipped":true,'
    b'"stretch":{"coefficients":[0.5],"least":0.1,"most":9.0},"success":0.125,'
    b'"told":[null,2.0]}\n'
)
STATE = {
    "covariance": [[1.0, 1 / 3], [5e-324, -0.0]],
    "steps": 2**70,
    "lost": None,
    "of": {"a": []},
}


@pytest.mark.parametrize("kind", ["seeds", "coordinates"])
def test_the_state_of_any_strategy_reads_back_as_it_was(tmp_path: Path, kind: str) -> None:
    one: Update | MeanUpdate = Update(0, 0, 0.1, 0.2, (0.3,), decay=0.7, strategy_state=STATE)
    if kind == "coordinates":
        one = MeanUpdate(0, 0.1, (1.0, 0.5), strategy_state=STATE)
    Journal(tmp_path / "j").append(one, DIGEST, missing=2, absent=(1,))
    assert Journal(tmp_path / "j").read()[0].update == one


def test_the_state_of_a_strategy_is_written_as_by_earlier_versions(tmp_path: Path) -> None:
    """These are the bytes of a line of commit e86cb48, where the journal knew each strategy."""
    state = {
        "choices": [[0.25, 0.75], [1.0]],
        "fitness": 0.5,
        "power": {"noise": 0.25, "total": 1.5},
        "success": 0.125,
        "told": [None, 2.0],
    }
    one = Update(
        *(3, 0, 0.1, 0.2, (0.5, -0.25)),
        sigma_update=SigmaUpdate((0.5,), 0.1, 9.0),
        skipped=True,
        backpropagated=True,
        strategy_state=state,
    )
    Journal(tmp_path / "j").append(one, DIGEST)
    assert (tmp_path / "j").read_bytes() == EARLIER_LINE


@pytest.mark.parametrize("value", [(1.0, 2.0), {1: "a"}, np.ones(2), [math.nan], {1}])
def test_a_state_that_json_would_change_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(GermlineError, match=r"x=.* does not read back from JSON"):
        Journal(tmp_path / "j").append(with_state({"x": value}), DIGEST)
    with pytest.raises(GermlineError, match="a value named 'digest', which is a field"):
        Journal(tmp_path / "j").append(with_state({"digest": "x"}), DIGEST)
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_never_reaches_the_journal(tmp_path: Path, bad: float) -> None:
    journal = Journal(tmp_path / "j")
    with pytest.raises(GermlineError, match="generation 0: the update holds a number"):
        journal.append(Update(0, 0, 0.1, 0.2, (1.0, bad)), DIGEST)
    with pytest.raises(
        GermlineError, match=r"does not read back|holds a number that is not finite"
    ):
        journal.append(with_state({"x": bad}), DIGEST)
    assert not (tmp_path / "j").exists()


# --- a journal that lost lines is refused where it would give older weights without a word


pytestmark = pytest.mark.usefixtures("graded_in_process")

LOST = "journal lines of generations {} to 3 are missing, so the newest weights cannot be rebuilt"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("trained") / "run")


def keep(path: Path, lines: int) -> None:
    kept = journal(path).splitlines(keepends=True)[:lines]
    (path / "journal.jsonl").write_bytes(b"".join(kept))


@pytest.fixture(params=[0, 2])
def cut(request: pytest.FixtureRequest, trained: Path, tmp_path: Path) -> tuple[Path, int]:
    """Return a run of 4 generations whose journal has only so many; with 0 it was deleted."""
    copy = tmp_path / "run"
    copy.mkdir()
    for file in trained.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    keep(copy, request.param)
    if not request.param:
        (copy / "journal.jsonl").unlink()
    return copy, request.param


def test_a_resumed_run_says_which_generations_it_trains_again(cut, trained, caplog):
    path, kept = cut
    germline.resume(path).run()
    assert f"journal lines of generations {kept} to 3 are missing: they are trained" in caplog.text
    assert journal(path) == journal(trained)
    caplog.clear()
    germline.resume(path)
    assert not caplog.text


@pytest.mark.parametrize(
    "use",
    [
        lambda path: germline.export(path, path.parent / "out"),
        lambda path: germline.generate(str(path), ["a"]),
        lambda path: germline.evaluate(str(path)),
        lambda path: germline.evaluate(str(path), generation=3),
        germline.replay,
        lambda path: germline.replay(path, 3),
        lambda path: germline.fork(path, 3, (), path.parent / "fork"),
        lambda path: open_evaluation(str(path)).measure_kl(),
    ],
    ids=["export", "generate", "evaluate", "evaluate-3", "replay", "replay-3", "fork", "kl"],
)
def test_what_needs_the_lost_lines_is_refused_with_a_remedy(cut, use):
    path, kept = cut
    with pytest.raises(GermlineError) as error:
        use(path)
    assert LOST.format(kept) in str(error.value)
    assert f"germline resume {path}" in str(error.value)
    assert f"germline export {path} --generation {kept - 1}" in str(error.value)


def test_a_kill_between_the_rows_and_the_journal_line_is_no_damage(cut, trained):
    path, _ = cut
    (path / "journal.jsonl").write_bytes(journal(trained))
    keep(path, 3)
    assert RunFacts(path).damage is None
    assert germline.generate(str(path), ["a"])


def test_a_resume_that_fails_releases_the_folder(cut: tuple[Path, int], trained: Path) -> None:
    path, _ = cut
    (path / "journal.jsonl").write_bytes(b"{}\n")
    with pytest.raises(GermlineError, match=r"journal\.jsonl, line 1") as damaged:
        germline.resume(path)
    (path / "journal.jsonl").unlink()
    for _ in germline.resume(path):
        pass
    assert journal(path) == journal(trained)
    # The error was kept until here with the frames that opened the run, as a notebook keeps it.
    assert damaged.tb is not None
