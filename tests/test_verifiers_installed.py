"""What is said about tasksets of verifiers that are or are not installed, without verifiers."""

from importlib import metadata

import pytest

from germline.config import Verifiers, load_config
from germline.environments import verifiers_installed
from germline.types import GermlineError


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ("owner/not-here@1.0", "prime env install owner/not-here@1.0"),
        ("not_here", "there is no module 'not_here', and germline installs nothing"),
        ("not_here.py", "there is no file"),
    ],
)
def test_a_missing_taskset_comes_with_its_command(env, problem):
    with pytest.raises(GermlineError, match=problem):
        verifiers_installed.check_installed(env)


def test_a_file_that_verifiers_would_import_by_another_name_is_refused(tmp_path):
    (tmp_path / "My-Env.py").write_text("")
    with pytest.raises(GermlineError, match=r"rename the file to my_env\.py"):
        verifiers_installed.check_installed(str(tmp_path / "My-Env.py"))


@pytest.mark.parametrize("found", ["0.3.1", "0.5.0", None])
def test_another_version_of_verifiers_is_refused_with_the_line_to_type(monkeypatch, found):
    def version(name):
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(GermlineError, match=rf"{found or ''}.*pip install 'germline\[verifiers\]'"):
        verifiers_installed.check_version()


def test_the_settings_of_a_taskset_are_a_mapping():
    given = ["task.kind=verifiers", "task.env=owner/name@0.1", "task.args={largest: 3}"]
    config = load_config({}, given)
    assert isinstance(config.task, Verifiers)
    assert config.task.args == {"largest": 3}
    assert config.task.title == "name"


def test_a_package_that_a_taskset_lacks_is_named():
    hidden = ModuleNotFoundError("taskset 'here' not found")  # as verifiers raises it
    hidden.__cause__ = ModuleNotFoundError(name="textarena")
    absent = verifiers_installed.import_error("owner/here", hidden)
    assert "imports 'textarena', which is not installed" in str(absent)
    hidden.__cause__ = ModuleNotFoundError(name="here")
    assert "no module with" in str(verifiers_installed.import_error("owner/here", hidden))
    other = verifiers_installed.import_error("owner/here", ZeroDivisionError("division by zero"))
    assert str(other).endswith("of verifiers v1: ZeroDivisionError: division by zero")
