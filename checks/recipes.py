"""Writes the header of every config in configs/recipes: computed memory, seconds and bytes.

    python -m checks.recipes            # writes them
    python -m checks.recipes --check    # prints which are stale

The end of a file's name is the machine of the recipe. Shapes are those of the published config.json
(`germline/estimates/popular_model_configs.py`) and speeds those of data sheets, so nothing is
downloaded or measured, and `tests/test_recipes.py` finds headers that are stale.
"""

import sys
import textwrap
from pathlib import Path

from germline.config import Config, load_config
from germline.estimates.estimate import Estimate, estimate
from germline.estimates.hardware import GPUS
from germline.estimates.model_shape import shape_of
from germline.estimates.workload import text_lengths

FOLDER = Path(__file__).resolve().parents[1] / "configs" / "recipes"

MACHINES = {
    "-laptop-8gb": ("laptop-8gb", "a laptop GPU of 8 GB"),
    "-2xt4": ("t4", "2 x T4"),
    "-24gb": ("24gb", "a GPU of 24 GB"),
    "-8x80gb-vllm": ("80gb", "8 x 80 GB with vLLM"),
    "-80gb": ("80gb", "a GPU of 80 GB"),
}
"""End of a file's name -> the name of its hardware description, and its name in headers."""

NOT_RUN = "Not yet run on this hardware."
WIDTH = 100
GIGABYTE = 1e9


def main() -> int:
    """Write the headers, or with `--check` print the stale ones and return 1 if there are any."""
    texts = {path: fresh(path) for path in recipes()}
    stale = [path for path, text in texts.items() if path.read_text(encoding="utf-8") != text]
    if sys.argv[1:] == ["--check"]:
        print("\n".join(f"{path.name} is stale: python -m checks.recipes" for path in stale))
        return 1 if stale else 0
    for path in stale:
        path.write_text(texts[path], encoding="utf-8")
        print(f"{path.name} written")
    return 0


def recipes() -> list[Path]:
    """List the recipes."""
    return sorted(FOLDER.glob("*.yaml"))


def fresh(path: Path, found: Estimate | None = None) -> str:
    """Return the text of a recipe: its computed header and its settings."""
    config = load_config(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    settings = [line for line in lines if not line.startswith("#")]
    return "\n".join([*header(path, config, found or computed(path, config)), *settings]) + "\n"


def header(path: Path, config: Config, found: Estimate) -> list[str]:
    """Return the comment above the settings of a recipe."""
    _, machine = machine_of(path)
    seconds = found.seconds
    sentences = (
        f"{config.model.partition('/')[2]} on {machine}, space {config.space.kind}. {NOT_RUN}",
        f"Computed from the data sheet of {found.machine.name} (python -m checks.recipes):",
        f"device memory {_gb(found.needed('device'))} of {_gb(found.machine.memory_bytes)}"
        f"{_per_gpu(config)} ({_parts(found, 'device')}); host memory "
        f"{_gb(found.needed('host'))}{_per_engine(config)} ({_parts(found, 'host')}).",
        f"A generation takes {_seconds(seconds.total)} where all texts run to their full length "
        f"(decode {_seconds(seconds.decode)}, prefill {_seconds(seconds.prefill)}, update "
        f"{_seconds(seconds.update)}); {found.wire_bytes:,.0f} bytes per member on the wire, text "
        f"apart; a snapshot is {_gb(found.snapshot_bytes)}.",
    )
    wrapped = [line for one in sentences for line in textwrap.wrap(one, WIDTH - 2)]
    name = f"configs/recipes/{path.name}"
    return [*(f"# {line}" for line in wrapped), f"#   germline train {name}"]


def computed(path: Path, config: Config) -> Estimate:
    """Compute the memory and time of a recipe on its machine."""
    key, _ = machine_of(path)
    return estimate(config, shape_of(config.model), text_lengths(config), GPUS[key])


def machine_of(path: Path) -> tuple[str, str]:
    """Return the hardware description of a recipe, and its name in headers."""
    return next(about for end, about in MACHINES.items() if path.stem.endswith(end))


def _parts(found: Estimate, place: str) -> str:
    listed = [one for one in found.parts if one.place == place and one.bytes >= 0.05 * GIGABYTE]
    shown = [one for one in listed if one.phase != "loading"]
    return ", ".join(f"{one.name} {one.bytes / GIGABYTE:.1f}" for one in shown)


def _per_gpu(config: Config) -> str:
    return " on each GPU" if config.fleet.engines > 1 else ""


def _per_engine(config: Config) -> str:
    return " for each engine" if config.fleet.engines > 1 else ""


def _gb(size: int | float) -> str:
    return f"{size / GIGABYTE:.1f} GB"


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 9.5 else f"{seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
