"""What is said about tasksets of verifiers that are or are not installed, without verifiers."""

import sys
from importlib import metadata

import pytest

from germline.cli import list_command
from germline.config import Verifiers, load_config
from germline.environments import verifiers_installed
from germline.environments.verifiers_installed import InstalledTaskset
from germline.types import GermlineError


def package(folder, name, *requires):
    info = folder / f"{name.replace('-', '_')}-1.2.dist-info"
    info.mkdir()
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2"]
    lines += [f"Requires-Dist: {one}" for one in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


@pytest.fixture
def installed(tmp_path, monkeypatch):
    package(tmp_path, "reverse-text", "verifiers<0.5,>=0.4", "numpy")
    package(tmp_path, "only-for-tests", 'verifiers>=0.4; extra == "test"')
    package(tmp_path, "other", "verifiers-like>=1")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])


def test_packages_that_need_verifiers_are_listed(installed):
    found = verifiers_installed.installed_tasksets()
    assert InstalledTaskset("reverse_text", "reverse-text 1.2", "<0.5,>=0.4") in found
    assert not [one for one in found if one.env in ("only_for_tests", "other", "germline")]


def test_list_environments_shows_them(installed):
    _, rows = list_command.OTHERS["environments"]()
    names = [name for name, *_ in rows]
    assert "verifiers" in names
    assert ("verifiers task.env=reverse_text", "reverse-text 1.2, for verifiers<0.5,>=0.4") in rows


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


@pytest.mark.parametrize(("found", "said"), [("0.3.1", "found 0.3.1"), ("0.5.0", "found 0.5.0")])
def test_another_version_of_verifiers_is_refused(monkeypatch, found, said):
    monkeypatch.setattr(metadata, "version", lambda _: found)
    with pytest.raises(GermlineError, match=said):
        verifiers_installed.check_version()


def test_without_verifiers_the_error_has_the_line_to_type(monkeypatch):
    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", nothing)
    with pytest.raises(GermlineError, match=r"pip install 'germline\[verifiers\]'"):
        verifiers_installed.check_version()


def test_the_settings_of_a_taskset_are_a_mapping():
    given = ["task.kind=verifiers", "task.env=owner/name@0.1", "task.args={largest: 3}"]
    config = load_config({}, given)
    assert isinstance(config.task, Verifiers)
    assert config.task.args == {"largest": 3}
    assert config.task.title == "name"
