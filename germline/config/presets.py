"""The configs that come with germline, found by name in every installation.

A checkout has them in `configs/`; a wheel contains that folder inside the package. A path such as
`configs/demo.yaml` means the shipped file if it does not exist, so the commands of the README work
in any folder.
"""

from pathlib import Path

PLACES = (Path(__file__).parents[1] / "configs", Path(__file__).parents[2] / "configs")
"""Their folder in a wheel, and in a checkout."""


def preset_configs() -> dict[str, Path]:
    """Return the shipped configs by name, such as `demo`."""
    folder = next((place for place in PLACES if place.is_dir()), None)
    if folder is None:
        return {}
    files = sorted(folder.rglob("*.yaml"))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def find_config(path: Path) -> Path:
    """Return an existing path unchanged, otherwise the shipped config of that name."""
    if path.exists():
        return path
    name = path.as_posix().removesuffix(".yaml").removeprefix("configs/")
    return preset_configs().get(name, path)


def config_summary(path: Path) -> str:
    """Return the comment at the top of a config file."""
    comment: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or text.startswith("germline ") or not text:
            break
        comment.append(text)
    return " ".join(comment)
