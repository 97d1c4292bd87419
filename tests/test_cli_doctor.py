"""The examination of an installation: healthy here, and every kind of trouble is told."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from germline.cli import installation_checks
from germline.cli.application import app
from germline.cli.installation_checks import InstallationCheck, Requirement
from germline.estimates.hardware import GPUS


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
    monkeypatch.setattr(installation_checks, "_cores", lambda: 0.5)
    (threads,) = [one for one in installation_checks.check_devices() if one.name == "threads"]
    assert threads.state == "note"
    assert "engine.threads=" in threads.remedy


def test_a_full_disk_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation_checks, "SCARCE_DISK_GB", 1e9)
    disk = next(installation_checks.check_environment())
    assert (disk.name, disk.state) == ("disk", "note")
    assert "--out" in disk.remedy


def estimated(monkeypatch: pytest.MonkeyPatch, *options: str) -> tuple[int, str]:
    monkeypatch.setattr("germline.estimates.here.measure_cpu", lambda *_: GPUS["80gb"])
    shown = CliRunner().invoke(app, ["doctor", *options])
    return shown.exit_code, shown.output


def test_doctor_estimates_what_a_config_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    status, shown = estimated(monkeypatch, "--config", "demo")
    assert status == 0
    assert re.search(r"weights +device +always", shown)
    assert "a generation:" in shown
    assert "times are computed from the data sheet" in shown  # measure_cpu is replaced
    assert "bytes per member on the wire" in shown
    assert shown.endswith("It fits.\n")


def test_doctor_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--model", "Qwen/Qwen3-4B", "--config", "papers/qiu-countdown-0.5b")
    status, shown = estimated(monkeypatch, *options, "--hardware", "24gb")
    assert status == 1
    assert "It does not fit. It fits with: engine.master_device=host" in shown


def test_doctor_takes_the_settings_that_it_proposes(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--model", "Qwen/Qwen3-4B", "--config", "papers/qiu-countdown-0.5b")
    status, shown = estimated(monkeypatch, *options, "--hardware", "24gb", "--json")
    proposed = json.loads(shown)["would_fit_with"]
    assert (status, bool(proposed)) == (1, True)
    status, shown = estimated(monkeypatch, *options, "--hardware", "24gb", *proposed)
    assert (status, shown.endswith("It fits.\n")) == (0, True)


def test_doctor_estimates_the_defaults_with_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    status, shown = estimated(monkeypatch, "space=lora")
    assert (status, "numbers searched (lora)" in shown) == (0, True)


def test_doctor_says_that_a_gpu_has_no_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--model", "Qwen/Qwen2.5-0.5B", "--hardware", "t4")
    told = "T4, 16 GB does not compute in bfloat16: a run is refused there. Set engine.dtype=float1"
    assert told in estimated(monkeypatch, *options)[1]
    assert "does not compute" not in estimated(monkeypatch, *options[:3], "24gb")[1]


def test_doctor_estimates_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--model", "Qwen/Qwen2.5-0.5B", "--hardware", "t4", "--json")
    status, shown = estimated(monkeypatch, *options)
    found = json.loads(shown)
    assert (status, found["fits"], found["would_fit_with"]) == (0, True, [])
    assert found["machine"].startswith("T4")
    assert {one["name"] for one in found["parts"]} >= {"weights", "fp32 masters", "KV cache"}
    assert found["seconds"]["total"] > 0


def test_doctor_names_the_hardware_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    status, shown = estimated(monkeypatch, "--hardware", "abacus")
    assert status == 2
    assert "laptop-8gb, t4, 24gb, 80gb" in shown
