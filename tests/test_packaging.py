"""The wheel: what it carries, and that it trains where nothing but the core is installed."""

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of this working tree, built with what is installed: no network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


def test_every_file_of_the_package_is_in_the_wheel_and_nothing_else(wheel):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = {
        place: {
            str(path.relative_to(ROOT))
            for path in (ROOT / place).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        for place in ("germline", "configs")
    }
    assert {"germline/nano/model.safetensors", "germline/py.typed"} <= names
    assert names == files["germline"] | {f"germline/{name}" for name in files["configs"]}


def core_distributions():
    """Return the distributions germline needs without extras, and those they need in turn."""
    found, waiting = {}, ["germline"]
    while waiting:
        distribution = metadata.distribution(waiting.pop())
        for line in distribution.requires or ():
            requirement = Requirement(line)
            name = canonicalize_name(requirement.name)
            if name in found or (requirement.marker and not requirement.marker.evaluate()):
                continue
            found[name] = metadata.distribution(name)
            waiting.append(name)
    return found


def link(distribution, folder):
    """Make what a distribution installed importable from a folder, without copying it."""
    files = distribution.files or ()
    for top in {Path(str(file)).parts[0] for file in files} - {"..", "__pycache__"}:
        if not (folder / top).exists():
            (folder / top).symlink_to(distribution.locate_file(top))


@pytest.fixture(scope="module")
def germline(wheel, tmp_path_factory):
    """Run a Python that finds the wheel and the core dependencies, and nothing else."""
    place = tmp_path_factory.mktemp("empty")
    venv.create(place / "venv", with_pip=False)
    python = place / "venv" / "bin" / "python"
    core = place / "core"
    core.mkdir()
    for distribution in core_distributions().values():
        link(distribution, core)
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
    site = next((place / "venv").glob("lib/python*/site-packages"))
    (site / "core.pth").write_text(f"{core}\n")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*words, code=None):
        command = [str(python), "-c", code] if code else [str(python.parent / "germline"), *words]
        return subprocess.run(
            command, cwd=place, env=clean, capture_output=True, text=True, check=False
        )

    return run


def test_the_wheel_trains_in_an_environment_with_nothing_but_the_core(germline):
    strangers = ["pytest", "beartype", "mypy", "ruff", "hatchling", "peft", "sybil", "grimp"]
    code = (
        "import importlib.util, germline\n"
        f"print([name for name in {strangers} if importlib.util.find_spec(name)])\n"
        "print(germline.__file__)"
    )
    strange, place = germline(code=code).stdout.splitlines()
    assert (strange, "/venv/lib/" in place) == ("[]", True)
    known = ("strategy.sigma=0.01", "strategy.learning_rate=0.01")  # or they would be measured
    done = germline("train", "demo", "generations=2", "held_out.examples=4", *known)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^generation (\d)", done.stdout, re.MULTILINE) == ["0", "1"]
    done = germline("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["healthy"]
    missing = [one for one in found["checks"] if one["state"] != "ok"]
    assert missing
    assert all("pip install" in one["remedy"] for one in missing)
