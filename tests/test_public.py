"""The public interface: every name and signature a program may rely on, and what importing costs.

A change here is a change for users: it belongs into CHANGELOG.md, and a removal into a new major
version.
"""

import inspect
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import germline

FROM_PYTHON = "reward=None, data=None"
SIGNATURES = {
    "build_run_parts": "(config, ancestors=(), inputs=PythonInputs(rewards={}, rows=None))",
    "check_task": "(task, overrides=(), *, model='nano', prompts=3)",
    "evaluate": (
        "(source, task=None, *, split='test', limit=None, overrides=(), out=None, "
        f"generation=None, {FROM_PYTHON}, samples=1, temperature=None)"
    ),
    "export": "(path, out, form=None, generation=None)",
    "findings": "(run)",
    "fork": f"(path, generation='best', overrides=(), out=None, *, {FROM_PYTHON})",
    "generate": (
        "(source, prompts, *, chat=None, max_new_tokens=128, temperature=0.0, top_p=1.0, seed=0, "
        "overrides=(), generation=None)"
    ),
    "load_config": "(source, overrides=())",
    "replay": "(path, generation=None)",
    "resume": f"(path, overrides=(), *, {FROM_PYTHON})",
    "sweep": "(config, over, out, *, overrides=(), jobs=1, **options)",
    "train": f"(config, out=None, *, {FROM_PYTHON})",
    "train_seeds": "(config, seeds, out=None)",
    "write_report": "(paths, out=None)",
}
CLASSES = {
    "Config": {
        *("model", "task", "space", "method", "strategy", "prompt_search", "shaping", "engine"),
        *("fleet", "microbatch", "graders", "held_out", "record", "batch_size", "generations"),
        *("budget", "retained", "seed"),
    },
    "GermlineError": set(),
    "Training": {"config", "directory", "end", "findings", "run", "start", "stop"},
}
HEAVY = ("torch", "transformers", "matplotlib", "numpy", "pydantic", "rich")


def untyped(function):
    """Return a signature without its annotations, which grow with every kind of section."""
    signature = inspect.signature(function)
    bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def test_the_public_names_are_these_and_no_others():
    assert set(germline.__all__) == SIGNATURES.keys() | CLASSES.keys()
    assert dir(germline) == germline.__all__
    assert germline.__version__ == version("germline")
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = germline.trian


def test_a_config_has_these_sections_and_a_training_offers_these():
    assert set(germline.Config.model_fields) == CLASSES["Config"]
    in_init = inspect.getsource(germline.Training.__init__)
    offered = {name for name in dir(germline.Training) if not name.startswith("_")}
    offered |= {name for name in ("config", "directory") if f"self.{name} =" in in_init}
    assert offered == CLASSES["Training"]
    assert hasattr(germline.Training, "__iter__")


@pytest.mark.parametrize("name", SIGNATURES)
def test_a_function_keeps_its_signature(name):
    assert untyped(getattr(germline, name)) == SIGNATURES[name]


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import germline", set()),
        ("import germline; germline.load_config({})", {"numpy", "pydantic"}),
        ("import germline; germline.train", {*HEAVY} - {"matplotlib", "transformers"}),
    ],
)
def test_what_is_imported(code, allowed):
    code += f"\nimport sys; print(*({{*{HEAVY}}} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    assert set(done.stdout.split()) <= allowed


@pytest.mark.parametrize(("given", "spins"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_threads_soon_leave_a_core_to_others_unless_the_user_decides(given, spins):
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    environment = {name: value for name, value in os.environ.items() if name not in ours} | given
    program = "import germline, os; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == spins
