"""The server of an SGLang engine: started for a run, and checked to be the one that the run needs.

A server of the run's own is started on a free port of this machine, waited for, and stopped with
the run. Its output goes to a file in a temporary folder, which errors name; a server that ran until
it was stopped has its folder deleted.

SGLang cannot return its weights, so the log-probabilities of a fixed text are compared with those
of the model here: another model is recognized, other weights of the same model as far as the
server's dtype allows.
"""

import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from germline.config import Sglang
from germline.engines.http_client import RequestRefused
from germline.engines.master_weights import Masters
from germline.engines.model_tensors import DTYPES
from germline.engines.sglang import watchdog
from germline.engines.sglang.client import GenerateRequest, ServerInfo, SglangClient
from germline.types import EngineLost, GermlineError

log = logging.getLogger(__name__)

DEFAULT_ADAPTERS = 16
"""Default of `engine.adapters` for a launched server: adapters in one batch."""
CPU_FLAGS = (
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--lora-backend", "torch_native", "--disable-overlap-schedule", "--sleep-on-idle"),
    *("--mem-fraction-static", "0.3", "--max-total-tokens", "32768"),
)
"""Flags whose defaults do not work on a CPU: kernels, and the share of memory."""
SHOWN_LINES = 12
PROBE = tuple(7 + 5 * index % 211 for index in range(40))
"""A fixed text of small token ids: SGLang exits on an id beyond the vocabulary."""
TOLERANCES = {torch.float32: 0.001, torch.bfloat16: 0.5, torch.float16: 0.1}
"""Mean difference of log-probabilities that rounding explains; another model gives 1 or more."""


class LaunchedServer:
    """A server process, whose output goes to `log_file`; the command must start it at `url`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], url: str) -> None:
        self.url = url
        self.log_file = Path(tempfile.mkdtemp(prefix="germline-sglang-")) / "server.log"
        self._is_ready = False
        with self.log_file.open("wb") as output:
            # In a session of its own, so that Ctrl-C reaches the run only.
            self._watchdog = subprocess.Popen(
                [sys.executable, "-I", watchdog.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
                start_new_session=True,
            )

    def wait(self, is_healthy: Callable[[], bool], startup_timeout_s: float) -> None:
        """Wait until the server is healthy."""
        log.warning("the SGLang server is starting; its output is in %s", self.log_file)
        started = time.monotonic()
        while not is_healthy():
            if (status := self._watchdog.poll()) is not None:
                end = f"ended with status {status} (it needs SGLang in engine.python)"
            elif time.monotonic() - started > startup_timeout_s:
                end = f"did not answer within engine.startup_timeout_s={startup_timeout_s:g} s"
            else:
                time.sleep(0.2)
                continue
            raise GermlineError(f"engine.launch: the SGLang server {end}. {self._last_output()}")
        self._is_ready = True

    def check_alive(self) -> None:
        """Check that a server that was healthy once still runs."""
        if self._is_ready and (status := self._watchdog.poll()) is not None:
            raise EngineLost(
                f"the SGLang server of this run ended with status {status}; a resumed run starts "
                f"another. {self._last_output()}"
            )

    def stop(self) -> None:
        """End the server and all its processes; delete its output if it ran until now."""
        ran_until_now = self._watchdog.poll() is None
        try:
            self._watchdog.communicate(timeout=2 * watchdog.GRACE_S)  # closes its standard input
        except subprocess.TimeoutExpired:
            self._watchdog.kill()
            self._watchdog.wait()
        if self._is_ready and ran_until_now:
            shutil.rmtree(self.log_file.parent, ignore_errors=True)

    def _last_output(self) -> str:
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        shown = "\n    ".join(["", *(line[:500] for line in lines[-SHOWN_LINES:])])
        return f"Its last output in {self.log_file}:{shown or ' nothing'}"


def launch_server(
    section: Sglang, source: str, dtype: torch.dtype, adapter_flags: Sequence[str]
) -> LaunchedServer:
    """Start a server for a model in a folder or of a hub id."""
    # As text: `which` returns a `Path` argument unchanged if it is a program.
    python = shutil.which(str(Path(section.python or sys.executable).expanduser()))
    if python is None:
        raise GermlineError(
            f"engine.python={section.python} is not a program on this machine: name the "
            "interpreter of an environment of its own, in which `pip install sglang` was run"
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kind, _, number = (device := launch_device(section)).partition(":")
    command = [
        *(python, "-m", "sglang.launch_server", "--model-path", source, "--skip-server-warmup"),
        *("--host", "127.0.0.1", "--port", str(port), "--dtype", str(dtype).split(".")[1]),
        *("--device", kind, *(["--base-gpu-id", number] if number else [])),
    ]
    environment = {"PYTHONSAFEPATH": "1"}  # files in the working directory are not modules
    if device == "cpu":
        command += CPU_FLAGS
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
    if section.threads is not None:
        environment["OMP_NUM_THREADS"] = str(section.threads)
    if adapter_flags:
        slots = section.adapters if section.adapters != "auto" else DEFAULT_ADAPTERS
        command += [*adapter_flags, "--max-loras-per-batch", str(slots + 1)]  # one is for the base
    # The last of two equal flags wins.
    command += section.options
    return LaunchedServer(command, environment, f"http://127.0.0.1:{port}")


def launch_device(section: Sglang) -> str:
    """Return the device of a launched server: `cpu`, `cuda` or, for example, `cuda:1`."""
    if section.device != "auto":
        return section.device
    return "cuda" if torch.cuda.is_available() else "cpu"


def server_dtype(info: ServerInfo, wanted: str, stored: torch.dtype) -> torch.dtype:
    """Return the dtype of a running server, for a checkpoint that is stored in some dtype."""
    dtype = DTYPES.get({"half": "float16", "float": "float32"}.get(info.dtype, info.dtype))
    if dtype is None:  # SGLang's rule for `--dtype auto`
        dtype = torch.float16 if stored == torch.float32 else stored
    if wanted != "auto" and DTYPES[wanted] != dtype:
        raise GermlineError(
            f"engine.dtype={wanted}, but the server was started with --dtype {info.dtype}: use "
            f"engine.dtype=auto, or start the server with --dtype {wanted}"
        )
    return dtype


def adapter_flags(masters: Masters) -> list[str]:
    """Return the flags a server needs for the adapters of a space."""
    names = (layer.name.removesuffix(".weight") for layer in masters.adapter_layers)
    modules = sorted({name.rpartition(".")[2] for name in names})
    rank = str(masters.adapter_rank)
    return ["--enable-lora", "--max-lora-rank", rank, "--lora-target-modules", *modules]


@torch.inference_mode()
def reference_log_probabilities(model: PreTrainedModel) -> list[float]:
    """Return the log-probabilities (fp32) of the fixed text under the base model here."""
    tokens = torch.tensor([_probe(model)])
    logits = model(tokens.to(next(model.parameters()).device)).logits[0, :-1].float().cpu()
    scores = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    return [float(score) for score in scores]


def check_base_weights(
    client: SglangClient,
    info: ServerInfo,
    model: PreTrainedModel,
    expected: list[float],
    dtype: torch.dtype,
) -> None:
    """Compare the server's log-probabilities of the fixed text with those of the model here."""
    (response,) = client.generate([GenerateRequest.to_score(_probe(model), 0)], [None])
    differences = [abs(a - b) for a, b in zip(response.scores, expected, strict=True)]
    difference = sum(differences) / len(differences)
    if not difference <= TOLERANCES[dtype]:
        raise GermlineError(
            f"{client.connection.name}: the server has {info.model_path}, with other weights than "
            f"model={model.name_or_path}: log-probabilities of a fixed text differ by "
            f"{difference:.3g} on average (rounding explains {TOLERANCES[dtype]:g}). Start the "
            "server with --model-path of that model"
        )


def _probe(model: PreTrainedModel) -> list[int]:
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    return [token for token in PROBE if token < vocabulary]


def check_writes(
    client: SglangClient, masters: Masters, dtype: torch.dtype, new_version: Callable[[], str]
) -> None:
    """Change one tensor of every kind, and check that the server's checksums change.

    SGLang reports success also for names that it ignores, and members would equal the center. A
    kind is a name without the number of its layer, because SGLang's weight loaders distinguish
    tensors that way. The caller writes the center over these changes before any evaluation.
    """
    try:
        before = client.checksum()
    except RequestRefused as refusal:
        log.warning("cannot check that the server writes the weights it receives: %s", refusal)
        return
    names = [info.name for info in masters.changed_weights()]
    first_of_kind: dict[str, str] = {}
    for name in names:
        first_of_kind.setdefault(re.sub(r"\.\d+\.", ".", name), name)
    ignored = []
    for name in first_of_kind.values():
        client.write([(name, masters.base.weights[name] + 1.0)], dtype, new_version())
        after = client.checksum()
        if after == before:
            ignored.append(name)
        before = after
    if ignored:
        raise GermlineError(
            f"{client.connection.name}: the server has no weights called {', '.join(ignored)}, and "
            "ignores what is written there: exclude these tensors (space.exclude), or use "
            "space.kind=lora, or engine.kind=inprocess"
        )
