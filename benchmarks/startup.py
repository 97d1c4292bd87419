"""Startup time: importing germline, and running commands such as `germline --help`.

    python -m benchmarks.startup --rounds 3

Every command runs in a Python process of its own. The commands take turns, so that other programs
slow all of them, and medians are compared with those of `python -c pass` of the same rounds.
Promised: `import germline` in under 0.3 s, `germline --help` in under 0.5 s.
"""

import argparse
import statistics
import subprocess
import sys
import time

NOTHING = "python -c pass"
COMMANDS = {
    NOTHING: ["-c", "pass"],
    "import germline": ["-c", "import germline"],
    "germline --help": ["-m", "germline", "--help"],
    "germline train --help": ["-m", "germline", "train", "--help"],
    "germline list tasks": ["-m", "germline", "list", "tasks"],
    "germline train nowhere.yaml": ["-m", "germline", "train", "nowhere.yaml"],
    "germline.load_config({})": ["-c", "import germline; germline.load_config({})"],
    "import torch": ["-c", "import torch"],
    "germline.train": ["-c", "import germline; germline.train"],
}
"""Label -> arguments of Python; the last two are for comparison."""

PROMISED_S = {"import germline": 0.3, "germline --help": 0.5}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Time the start of germline's commands.")
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(f"medians of {rounds} rounds, Python {sys.version.split()[0]}\n")
    print("| command | s | above `python -c pass`, s | promised, s |")
    print("|---|---|---|---|")
    seconds: dict[str, list[float]] = {label: [] for label in COMMANDS}
    for number in range(rounds + 1):
        for label, arguments in COMMANDS.items():
            took = timed(arguments)
            if number:  # the first round fills the caches of Python and of the disk
                seconds[label].append(took)
    medians = {label: statistics.median(values) for label, values in seconds.items()}
    for label, median in medians.items():
        promised = f"under {PROMISED_S[label]}" if label in PROMISED_S else ""
        print(f"| `{label}` | {median:.3f} | {median - medians[NOTHING]:.3f} | {promised} |")


def timed(arguments: list[str]) -> float:
    """Run Python once and return its seconds, including start and end.

    Raises:
        RuntimeError: it failed; a command that refuses its arguments (status 2) did not.
    """
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 2):
        raise RuntimeError(done.stderr)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
