"""The public interface: its names, and what importing it costs."""

from importlib.metadata import version
from pathlib import Path

import pytest

import germline
from tests.other_process import python

HEAVY = ("torch", "transformers", "matplotlib", "numpy", "pydantic", "rich", "jaxtyping")
GRADERS = (
    "germline.graders.worker_process, germline.graders.builtin_rewards, "
    "germline.graders.task_file, germline.environments.grader"
)


def test_the_public_names_are_these_and_no_others():
    assert dir(germline) == germline.__all__
    assert germline.__version__ == version("germline")
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = germline.trian


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import germline", set()),
        ("import germline; germline.load_config({})", {"jaxtyping", "numpy", "pydantic"}),
        ("import germline; germline.train", {*HEAVY} - {"matplotlib", "transformers"}),
        ("from germline.cli.application import app", set()),
        (f"import {GRADERS}", set()),  # a process of graders starts in a quarter of the time
    ],
)
def test_what_is_imported(code, allowed):
    code += f"\nimport sys; print(*({{*{HEAVY}}} & set(sys.modules)))"
    done = python("-c", code, cwd=Path(__file__).parents[1])
    assert set(done.stdout.split()) <= allowed


@pytest.mark.parametrize(("given", "spins"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_threads_soon_leave_a_core_to_others_unless_the_user_decides(given, spins, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    program = "import germline, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    assert python("-c", program, **given).stdout.strip() == spins
