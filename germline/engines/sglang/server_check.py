"""Whether a server is the one a run needs: its model, dtype and writable weights.

SGLang cannot return its weights, so the log-probabilities of a fixed text are compared with those
of the model here: another model is recognized, other weights of the same model as far as the
server's dtype allows.
"""

import logging
import re
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from germline.engines.http_client import RequestRefused
from germline.engines.master_weights import Masters
from germline.engines.model_tensors import DTYPES
from germline.engines.sglang.client import GenerateRequest, ServerInfo, SglangClient
from germline.types import GermlineError

log = logging.getLogger(__name__)

PROBE = tuple(7 + 5 * index % 211 for index in range(40))
"""A fixed text of small token ids: SGLang exits on an id beyond the vocabulary."""
TOLERANCES = {torch.float32: 0.001, torch.bfloat16: 0.5, torch.float16: 0.1}
"""Mean difference of log-probabilities that rounding explains; another model gives 1 or more."""


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
