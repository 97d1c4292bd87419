"""Speed of drawing weight noise, compared with `torch.randn` on the same device.

    python -m benchmarks.noise                      # the CPU, and a GPU if there is one
    python -m benchmarks.noise --samples 100000000 --repeats 5

Both write one row of fp32 into new memory. `integers` is the implementation for a GPU without
Triton. The goal on a GPU is at most 1.5 times the time of `torch.randn`. Before timing, the bits of
every implementation are compared with those of the CPU.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from germline import noise, tensor_noise
from germline.tensor_noise import NoiseStream, torch_noise

STREAM = NoiseStream(0, 0, "model.layers.0.mlp.up_proj.weight")
CHECKED = 100_003
"""Samples whose bits are compared."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time noise against torch.randn.")
    parser.add_argument("--samples", type=int, default=1 << 24)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    devices = [torch.device("cpu")]
    if torch.cuda.is_available():
        devices.append(torch.device("cuda"))
    print(f"{arguments.samples} samples, {arguments.threads} threads, torch {torch.__version__}\n")
    print("| device | way | million samples/s | time / randn's |")
    print("|---|---|---|---|")
    for device in devices:
        for line in lines(device, arguments.samples, arguments.repeats):
            print(line, flush=True)


def lines(device: torch.device, samples: int, repeats: int) -> list[str]:
    """Time the implementations of a device in turn."""
    ways: dict[str, Callable[[int], torch.Tensor]] = {
        "torch.randn": lambda count: torch.randn(count, device=device),  # noqa: TID251 - compared
        "germline": lambda count: tensor_noise.normals(STREAM, [0], count, device=device),
    }
    if device.type != "cpu":
        ways["integers"] = lambda count: torch_noise.normals(STREAM, [0], count, 0, device)
    for name in list(ways)[1:]:
        check_other_bits(name, ways[name](CHECKED))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repeats + 1):
        for name, draw in ways.items():
            wait_for(device)
            began = time.perf_counter()
            draw(samples)
            wait_for(device)
            if turn:  # the first round compiles and fills caches
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    about = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return [
        f"| {about} | {name} | {samples / taken / 1e6:.0f} | {taken / medians['torch.randn']:.2f} |"
        for name, taken in medians.items()
    ]


def check_other_bits(name: str, drawn: torch.Tensor) -> None:
    """Raise if an implementation draws other bits than the specified ones."""
    expected = noise.draw_noise_rows(STREAM.run_seed, STREAM.generation, [0], STREAM.name, CHECKED)
    if not torch.equal(drawn.cpu(), torch.from_numpy(expected)):
        raise RuntimeError(f"{name} on {drawn.device} draws other bits than the CPU")


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
