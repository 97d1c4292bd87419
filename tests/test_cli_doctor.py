"""`germline doctor`: healthy here, and every kind of trouble is a row with a remedy."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from typer.testing import CliRunner

from germline.cli import doctor
from germline.cli.application import app
from germline.cli.doctor import InstallationCheck


def examined(monkeypatch, *checks):
    monkeypatch.setattr(doctor, "CHECKS", {"self check": checks})
    done = CliRunner().invoke(app, ["doctor", "--json"])
    return done.exit_code, json.loads(done.output)["self check"]


def test_nothing_is_broken_here_and_everything_is_looked_at():
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0
    document = json.loads(done.output)
    rows = [row for rows in document.values() if rows is not True for row in rows]
    assert [row for row in rows if row["state"] == "broken"] == []
    assert [row for row in rows if row["state"] != "ok" and not row["remedy"]] == []
    names = {
        title: {row["name"] for row in rows} for title, rows in document.items() if rows is not True
    }
    assert names["versions"] >= {"python", "germline", "torch", "numpy", "peft (peft)"}
    assert not names["versions"] & {"pytest", "mkdocs-material"}
    assert names["devices"] >= {"processor", "memory"}
    assert names["self check"] == {"noise", "nano model", "generation", "update", "graders"}
    assert "disk" in names["environment"]


def test_other_bits_end_with_status_1(monkeypatch):
    monkeypatch.setattr(doctor, "NOISE_DIGEST", "0" * 64)
    monkeypatch.setattr(doctor, "CHECKS", {"self check": (doctor.check_noise,)})
    shown = CliRunner().invoke(app, ["doctor"])
    assert shown.exit_code == 1
    assert "broken\tnoise\tdigest 2a2c12ab0895, expected 000000000000 -> " in shown.output
    assert shown.output.endswith("1 checks failed\n")


def test_a_missing_package_comes_with_the_command_that_installs_it(monkeypatch):
    required = ["no-such-package>=2", "no-such-extra>=3; extra == 'ray'", "no-such; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda _: required)
    status, rows = examined(monkeypatch, doctor.check_versions)
    assert status == 1
    found = [(row["name"], row["state"], row["remedy"]) for row in rows[2:]]
    assert found == [
        ("no-such-package", "broken", "pip install 'no-such-package>=2'"),
        ("no-such-extra (ray)", "note", "pip install 'germline[ray]'"),
    ]


def test_a_check_that_fails_is_a_row(monkeypatch):
    def check_everything():
        yield InstallationCheck("first", "fine")
        raise OSError("no smoke without it")

    status, (first, second) = examined(monkeypatch, check_everything)
    assert (status, first["state"], second["name"]) == (1, "ok", "everything")
    assert (second["state"], second["value"]) == ("broken", "OSError: no smoke without it")


def test_an_installation_without_torch_can_be_examined():
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
    assert (done.returncode, done.stderr) == (1, "")
    assert "broken\tdevices" in done.stdout
    assert "ok\tnoise" in done.stdout
