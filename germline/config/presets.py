"""The configs that come with germline, found by name wherever it is installed.

A checkout has them in `configs/`; a wheel carries that folder inside the package. So that what the
README says works anywhere, `configs/demo.yaml` means the shipped file where there is no such file.
"""

from pathlib import Path

PLACES = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")
"""Where a wheel puts them, and where a checkout has them."""


def preset_configs() -> dict[str, Path]:
    """Return the shipped configs by name, such as `demo`."""
    folder = next((place for place in PLACES if place.is_dir()), None)
    if folder is None:
        return {}
    files = sorted(folder.rglob("*.yaml"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def find_config(path: Path) -> Path:
    """Return a file as it is, or the shipped config of that name where there is no such file."""
    if path.exists():
        return path
    name = path.as_posix().removesuffix(".yaml").removeprefix("configs/")
    return preset_configs().get(name, path)


def config_summary(path: Path) -> str:
    """Return what the first lines of a config file say about it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    said = []
    for line in lines:
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or text.startswith("germline ") or not text:
            break
        said.append(text)
    return " ".join(said)
