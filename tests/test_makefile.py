"""The Makefile: what each command would install, as `make -n` prints it."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTORCH_INDEX = "https://download.pytorch.org/whl/cpu"

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def clone(tmp_path):
    """A folder with the files that the Makefile reads, and one for programs that come first."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "programs").mkdir()
    program(tmp_path, "uname", "echo Linux")
    program(tmp_path, "nvidia-smi", "exit 9")
    return tmp_path


def program(clone, name, script):
    """Put a program of this name first on PATH."""
    path = clone / "programs" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def graphics_card(clone, listed="GPU 0: NVIDIA T4 (UUID: GPU-0)"):
    """Let `nvidia-smi -L` list a GPU; without this option it prints a table."""
    program(clone, "nvidia-smi", f'test "$*" = -L && echo "{listed}" || echo "| GPU  Name |"')


def dry_run(clone, *arguments):
    """Return what make would run."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("TORCH", "PIP_ARGS", "MAKEFLAGS", "MAKELEVEL")
    }
    environment["PATH"] = f"{clone / 'programs'}:{environment['PATH']}"
    return subprocess.run(
        ["make", "-n", *arguments],
        cwd=clone,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def installs(clone, *arguments):
    """Return what each call of pip would install."""
    lines = dry_run(clone, *arguments).stdout.splitlines()
    calls = [line.partition("-c constraints.txt")[2] for line in lines if "pip install" in line]
    return [call.removesuffix("|| { \\").split()[-1] for call in calls]


def version():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line.removeprefix("torch==") for line in lines if line.startswith("torch=="))


def test_without_an_nvidia_gpu_the_demo_takes_the_cpu_build_of_torch_and_says_so(clone):
    printed = dry_run(clone, "demo").stdout
    assert installs(clone, "demo") == [f"torch=={version()}+cpu", "."]
    assert f"--no-deps --retries 2 --extra-index-url {PYTORCH_INDEX} torch" in printed
    said = [line for line in printed.splitlines() if "No NVIDIA GPU" in line]
    assert len(said) == 1
    assert "TORCH=cuda" in said[0]


def test_with_an_nvidia_gpu_the_demo_takes_the_build_of_pips_own_index(clone):
    graphics_card(clone)
    assert installs(clone, "demo") == ["torch", "."]
    assert PYTORCH_INDEX not in dry_run(clone, "demo").stdout


def test_a_driver_without_a_gpu_is_no_gpu(clone):
    graphics_card(clone, "No devices were found")
    assert installs(clone, "demo")[0].endswith("+cpu")


def test_torch_is_chosen_by_one_switch(clone):
    assert installs(clone, "demo", "TORCH=cuda") == ["torch", "."]
    graphics_card(clone)
    assert installs(clone, "demo", "TORCH=cpu") == [f"torch=={version()}+cpu", "."]


def test_an_unknown_build_is_refused(clone):
    refused = dry_run(clone, "demo", "TORCH=gpu")
    assert refused.returncode != 0
    assert "TORCH=gpu is no build of torch: use cpu, cuda or auto" in refused.stderr


def test_other_systems_have_one_build(clone):
    program(clone, "uname", "echo Darwin")
    assert installs(clone, "demo") == ["torch", "."]
    assert "NVIDIA" not in dry_run(clone, "demo").stdout


@pytest.fixture
def installed(clone):
    """A clone in which `make demo` has run on a machine without a GPU."""
    (clone / ".venv/bin").mkdir(parents=True)
    for name in ("bin/python", ".torch-cpu", ".installed"):
        (clone / ".venv" / name).touch()
    return clone


def test_what_is_installed_stays_until_the_switch_says_otherwise(installed):
    graphics_card(installed)
    assert installs(installed, "demo") == []
    assert installs(installed, "demo", "TORCH=cuda") == ["torch", "."]
    assert "pip uninstall --quiet --yes torch" in dry_run(installed, "demo", "TORCH=cuda").stdout


def test_tests_add_the_tools_and_the_site_its_own(installed):
    assert installs(installed, "test") == ["'.[dev]'"]
    assert installs(installed, "docs") == ["'.[dev]'", "'.[docs]'"]


def test_new_pins_are_installed(installed):
    os.utime(installed / ".venv/.torch-cpu", (1, 1))
    os.utime(installed / ".venv/.installed", (1, 1))
    assert installs(installed, "demo") == [f"torch=={version()}+cpu", "."]


def test_no_file_spells_out_a_package_index_besides_pytorchs():
    files = [ROOT / "Makefile", ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / ".ci/run"]
    files += [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("checks/**/*.py"),
        *ROOT.glob("checks/**/*.txt"),
    ]
    for path in files:
        found = re.findall(
            r"(?:--\S*index-url|--find-links|-f)[= ]+[\"']?(\w+://\S+)", path.read_text()
        )
        found += re.findall(r"https?://\S*(?:pypi|/simple)\S*", path.read_text())
        assert [url for url in found if "download.pytorch.org" not in url] == [], path


def test_make_check_checks_types_while_tests_run(clone):
    def tests(target):
        lines = dry_run(clone, target).stdout.splitlines()
        return [line for line in lines if " -m pytest " in line]

    assert "--jaxtyping-packages=germline,beartype.beartype" in tests("check")[-1]
    assert "--jaxtyping-packages" not in tests("test")[-1]
