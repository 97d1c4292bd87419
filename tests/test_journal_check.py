"""A journal that lost lines is refused where it would give older weights without a word."""

from pathlib import Path

import pytest

import germline
from germline.report.run_facts import RunFacts
from germline.run.inference import open_evaluation
from germline.types import GermlineError
from tests.toy_runs import journal, run

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
