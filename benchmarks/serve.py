"""Throughput and latency of `germline serve`, against the engine called directly on the same rows.

    python -m benchmarks.serve                  # the table of docs/results.md
    python -m benchmarks.serve --minutes 5      # a soak: requests of all kinds, and the memory

64 clients, each with a connection of its own, send requests to 16 members of a run: 4 prompts per
member, different for every client and round, 64 new tokens each (the nano model without its end
token, greedy). The server is a process, the clients are another one; both use one thread. The
engine is called with the same 64 rows per round, in one batch. Turns of server and engine
alternate, and medians are compared.

On a machine that other programs use, wall time says little: the server and its clients wait for a
core more often than the engine alone. The CPU seconds of the server's process, which include HTTP
and JSON, are compared with those of the engine too.
"""

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import germline
from germline.endpoint.row_generator import generate_rows
from germline.nano import NANO_DIR
from germline.services.serve import ServedWeights
from germline.types import Decoding, Example

CLIENTS, MEMBERS, ROUNDS = 64, 16, 4
NEW_TOKENS = 64
SETTINGS = {
    "task": {"kind": "arithmetic", "max_new_tokens": 8},
    "space": {"kind": "low_rank", "rank": 1},
    "engine": {"kind": "inprocess", "threads": 1},
    "strategy": {"population": MEMBERS, "sigma": 0.01, "learning_rate": 0.01},
    "generations": 1,
    "batch_size": 2,
    "held_out": {"examples": 2, "every": 100},
    "record": {"tensorboard": False},
}
NAMES = [f"gen-0/member-{number}" for number in range(MEMBERS)]

Request = tuple[str, dict[str, Any]]


def main() -> None:
    """Print the table, or the memory of a soak."""
    parser = argparse.ArgumentParser(description="The server against the engine.")
    parser.add_argument("--repeats", type=int, default=5, help="turns of each")
    parser.add_argument("--minutes", type=float, help="soak for so long instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = endless_nano(Path(folder) / "model")
        run = Path(folder) / "run"
        germline.train({**SETTINGS, "model": str(model)}, run).run()
        with served(run) as (port, process):
            if arguments.minutes is None:
                print("\n".join(compare(run, port, process, arguments.repeats)))
            else:
                for line in soak(port, process, arguments.minutes):
                    print(line, flush=True)


def endless_nano(folder: Path) -> Path:
    """Copy the nano model without its end token."""
    shutil.copytree(NANO_DIR, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for file, setting in (
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        path = folder / file
        path.write_text(json.dumps(json.loads(path.read_text()) | {setting: None}))
    return folder


@contextmanager
def served(run: Path) -> Iterator[tuple[int, int]]:
    """Serve a run in a process; give its port and its process id."""
    command = [sys.executable, "-m", "germline", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        try:
            line = next(line for line in process.stdout if "/v1" in line)
            (port,) = re.findall(r":(\d+)/v1", line)
            yield int(port), process.pid
        finally:
            process.terminate()


@dataclass
class Turns:
    """Wall and CPU seconds of some turns."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @contextmanager
    def timed(self, cpu_seconds: Callable[[], float], *, counts: bool) -> Iterator[None]:
        """Time a `with` block."""
        wall, cpu = time.perf_counter(), cpu_seconds()
        yield
        if counts:
            self.wall.append(time.perf_counter() - wall)
            self.cpu.append(cpu_seconds() - cpu)


def compare(run: Path, port: int, process: int, repeats: int) -> Iterator[str]:
    """Yield the table: rows per second of both, their ratio, and latencies."""
    weights = ServedWeights.open(str(run))
    weights.load(weights.select(NAMES[0]))
    engine, server, latencies = Turns(), Turns(), list[float]()
    for turn in range(-1, repeats):  # the first turn warms up
        counts = turn >= 0
        rounds = [prompts_of(turn, number) for number in range(ROUNDS)]
        with engine.timed(time.process_time, counts=counts):
            texts = [directly(weights, prompts) for prompts in rounds]
        with server.timed(partial(cpu_seconds, process), counts=counts):
            answers = asyncio.run(ask_all(port, [[greedy(one) for one in row] for row in rounds]))
        if [[text for text, _ in row] for row in answers] != texts:
            raise SystemExit("the server's texts are not the engine's")
        latencies += [seconds for row in answers for _, seconds in row] if counts else []
    rows = CLIENTS * ROUNDS
    cuts = statistics.quantiles(latencies, n=100)
    yield f"{CLIENTS} clients, {MEMBERS} members, {NEW_TOKENS} new tokens, 1 thread, medians of"
    yield f"{repeats} turns of {rows} rows\n"
    yield "| | engine, rows/s | server, rows/s | server / engine | p50 | p99 |"
    yield "|---|---|---|---|---|---|"
    for name, direct, through in (
        ("wall time", engine.wall, server.wall),
        ("CPU time", engine.cpu, server.cpu),
    ):
        one, other = (rows / statistics.median(seconds) for seconds in (direct, through))
        shown = f"| {name} | {one:.0f} | {other:.0f} | {other / one:.0%} |"
        is_wall = direct is engine.wall
        yield shown + (
            f" {cuts[49] * 1e3:.0f} ms | {cuts[98] * 1e3:.0f} ms |" if is_wall else " | |"
        )


def prompts_of(turn: int, number: int) -> list[str]:
    """Return the prompt of each client in a round."""
    return [f"What is {turn + 1} plus {number * CLIENTS + client}?" for client in range(CLIENTS)]


def directly(weights: ServedWeights, prompts: Sequence[str]) -> list[str]:
    """Generate the rows of a round with the engine."""
    rows = [
        (weights.select(NAMES[client % MEMBERS]).member, Example(0, prompt, "", chat=True))
        for client, prompt in enumerate(prompts)
    ]
    completions = generate_rows(weights.engine, rows, Decoding(NEW_TOKENS))
    return [completion.text for completion in completions]


def greedy(prompt: str) -> dict[str, Any]:
    """Return the body of a chat request, but for its model."""
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "temperature": 0, "max_tokens": NEW_TOKENS}


async def ask_all(
    port: int, rounds: Sequence[Sequence[dict[str, Any]]]
) -> list[list[tuple[str, float]]]:
    """Let every client ask its request of each round; return texts and seconds, `[rounds]`."""

    async def ask(client: int) -> list[tuple[str, float]]:
        answers = []
        async with Connection(port) as connection:
            for bodies in rounds:
                body = {"model": NAMES[client % MEMBERS], **bodies[client]}
                started = time.perf_counter()
                answer = await connection.post("/v1/chat/completions", body)
                text = answer["choices"][0]["message"]["content"]
                answers.append((text, time.perf_counter() - started))
        return answers

    of_clients = await asyncio.gather(*map(ask, range(CLIENTS)))
    return [list(row) for row in zip(*of_clients, strict=True)]


class Connection:
    """One HTTP connection that stays open; costs the client little time."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Connection":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def post(self, path: str, body: object) -> Any:
        """Send JSON; return the JSON of a response with status 200."""
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        (length,) = re.findall(r"(?i)content-length: (\d+)", head)
        answer = await self._reader.readexactly(int(length))
        if " 200 " not in head.partition("\r\n")[0]:
            raise SystemExit(f"{head}{answer.decode()}")
        return json.loads(answer)


def soak(port: int, process: int, minutes: float) -> Iterator[str]:
    """Send requests of all kinds, with new prompts each; yield a row of a table per minute.

    A row has the memory of the server, and the completions that it counts as waiting or being
    generated although all clients have gone.
    """
    numbers = random.Random(0)
    began = time.monotonic()
    first, reported, sent = 0.0, 0, 0
    yield "| minute | requests | memory of the server | growth since the first minute | leaked |"
    yield "|---|---|---|---|---|"
    while reported < minutes:
        asyncio.run(one_of_each(port, numbers))
        sent += CLIENTS
        if time.monotonic() - began >= 60 * (reported + 1):
            reported += 1
            used = resident_mb(process)
            first = first or used
            grown = f"{used:.1f} MB | {used - first:+.1f} MB"
            yield f"| {reported} | {sent} | {grown} | {leaked_completions(port)} |"


async def one_of_each(port: int, numbers: random.Random) -> None:
    """Let every client send one request: chat or text, greedy or sampled, with or without scores.

    Every eighth client closes its connection before the response.
    """

    async def ask(client: int) -> None:
        prompt = f"What is {numbers.random()} plus {numbers.random()}?"
        body: dict[str, Any] = {"model": NAMES[client % MEMBERS], "max_tokens": 16}
        body |= {"temperature": client % 2, "seed": numbers.randrange(2**60)}
        path = "/v1/chat/completions"
        if client % 4 < 2:
            body |= {"messages": [{"role": "user", "content": prompt}], "n": 1 + client % 3}
        else:
            path = "/v1/completions"
            body |= {"prompt": prompt, "echo": True, "logprobs": 1}
        async with Connection(port) as connection:
            if client % 8 == 7:
                with_timeout = asyncio.wait_for(connection.post(path, body), 0.01)
                await asyncio.gather(with_timeout, return_exceptions=True)
            else:
                await connection.post(path, body)

    await asyncio.gather(*map(ask, range(CLIENTS)))


def leaked_completions(port: int) -> int:
    """Return the completions that wait or are generated when no client is left."""
    for _ in range(100):  # what is being generated for a client that has gone is finished first
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as response:
            queued = int(json.load(response)["queued"])
        if not queued:
            break
        time.sleep(0.1)
    return queued


def cpu_seconds(process: int) -> float:
    """Return the CPU time of a process, of all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(process: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


if __name__ == "__main__":
    main()
