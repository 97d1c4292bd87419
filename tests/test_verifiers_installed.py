"""What is said about tasksets of verifiers that are or are not installed, without verifiers."""

from importlib import metadata

import pytest

from germline.config import Verifiers, load_config
from germline.environments import verifiers_installed
from germline.types import GermlineError


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(GermlineError, match="there is no file"):
        verifiers_installed.check_file("not_here.py")


def test_a_file_that_verifiers_would_import_by_another_name_is_refused(tmp_path):
    (tmp_path / "My-Env.py").write_text("")
    with pytest.raises(GermlineError, match=r"rename the file to my_env\.py"):
        verifiers_installed.check_file(str(tmp_path / "My-Env.py"))


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
