"""The examination of an installation: healthy here, and every kind of trouble is told."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from germline.cli import installation_checks
from germline.cli.application import app
from germline.cli.installation_checks import InstallationCheck, Requirement
from germline.estimates import machine


def only(monkeypatch: pytest.MonkeyPatch, look: Callable[[], Iterator[InstallationCheck]]) -> None:
    monkeypatch.setattr(installation_checks, "CHECKS", {"self check": (look,)})


@pytest.fixture(scope="module")
def examined() -> dict[str, list[InstallationCheck]]:
    return installation_checks.check_installation()


def test_nothing_is_broken_here(examined: dict[str, list[InstallationCheck]]) -> None:
    found = [one for findings in examined.values() for one in findings]
    assert [one for one in found if one.state == "broken"] == []
    assert [one for one in found if one.state != "ok" and not one.remedy] == []


def test_everything_promised_is_looked_at(examined: dict[str, list[InstallationCheck]]) -> None:
    names = {title: {one.name for one in found} for title, found in examined.items()}
    assert names["versions"] >= {"python", "germline", "torch", "transformers", "numpy"}
    assert names["devices"] >= {"processor", "memory", "threads"}
    assert names["self check"] == {"noise", "nano model", "generation", "update", "graders"}
    assert "disk" in names["environment"]


def test_what_germline_requires_is_read_from_its_metadata() -> None:
    packages = {one.package.lower(): one for one in installation_checks.requirements()}
    assert packages["numpy"] == Requirement("numpy", "numpy>=2.0", None)
    assert packages["pytest"].extra == "dev"


def test_other_bits_end_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation_checks, "NOISE_DIGEST", "0" * 64)
    only(monkeypatch, installation_checks.check_noise)
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 1
    assert "BROKEN  noise  digest 2a2c12ab0895, expected 000000000000" in shown.output
    assert shown.output.endswith("1 checks failed\n")


def test_a_missing_package_comes_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [
        Requirement("no-such-package", "no-such-package>=2", None),
        Requirement("no-such-extra", "no-such-extra>=3", "speed"),
    ]
    monkeypatch.setattr(installation_checks, "requirements", lambda: wanted)
    broken = [one for one in installation_checks.check_versions() if one.state == "broken"]
    assert [one.remedy for one in broken] == ["pip install 'no-such-package>=2'"]
    (extra,) = installation_checks.check_extras()
    assert (extra.name, extra.state) == ("speed", "note")
    assert extra.remedy == "pip install 'germline[speed]'"  # as the documentation spells it


def test_a_look_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything_burns() -> Iterator[InstallationCheck]:
        yield InstallationCheck("first", "ok", "fine")
        raise OSError("no smoke without it")

    only(monkeypatch, everything_burns)
    shown = CliRunner().invoke(app, ["doctor", "--json"])
    assert shown.exit_code == 1
    findings = json.loads(shown.output)
    assert not findings["healthy"]
    assert [(one["name"], one["state"]) for one in findings["self check"]] == [
        ("first", "ok"),
        ("everything burns", "broken"),
    ]
    assert "OSError: no smoke without it" in findings["self check"][1]["value"]


def test_an_installation_without_torch_can_be_examined() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; sys.argv = ['germline', 'doctor']\n"
        "from germline.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        check=False,
    )
    assert done.returncode == 1
    assert "BROKEN  devices" in done.stdout
    assert "ok  noise" in done.stdout
    assert done.stderr == ""


def test_more_threads_than_cores_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 0.5)
    (threads,) = [one for one in installation_checks.check_devices() if one.name == "threads"]
    assert threads.state == "note"
    assert "engine.threads=" in threads.remedy


def test_a_full_disk_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation_checks, "SCARCE_DISK_GB", 1e9)
    disk = next(installation_checks.check_environment())
    assert (disk.name, disk.state) == ("disk", "note")
    assert "--out" in disk.remedy
