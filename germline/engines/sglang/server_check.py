"""Whether a server is the one a run needs: its model, its dtype, room for the run's adapters.

SGLang cannot hand out its weights, so what they make of a fixed text is compared with what the
model makes of it here: another model is told apart for certain, other weights of the same model as
far as the dtype of the server allows.
"""

import torch
from transformers import PreTrainedModel

from germline.engines.dtypes import DTYPES
from germline.engines.master_weights import Masters
from germline.engines.sglang.client import GenerateRequest, ServerInfo, SglangClient
from germline.types import GermlineError

PROBE = tuple(7 + 5 * place % 211 for place in range(40))
"""A text that every model knows: small ids only, as SGLang ends on one beyond the vocabulary."""
TOLERANCES = {torch.float32: 0.001, torch.bfloat16: 0.5, torch.float16: 0.1}
"""Mean difference of log-probabilities that rounding may explain; other models are 1 and more."""


def server_dtype(info: ServerInfo, wanted: str, stored: torch.dtype) -> torch.dtype:
    """Return the dtype of a running server.

    Args:
        info: what the server tells.
        wanted: `engine.dtype`.
        stored: of the checkpoint.

    Raises:
        GermlineError: it has another one than is asked for.
    """
    found = DTYPES.get({"half": "float16", "float": "float32"}.get(info.dtype, info.dtype))
    if found is None:  # `--dtype auto`, as SGLang understands it
        found = torch.float16 if stored == torch.float32 else stored
    if wanted != "auto" and DTYPES[wanted] != found:
        raise GermlineError(
            f"engine.dtype={wanted}, but the server was started with --dtype {info.dtype}: use "
            f"engine.dtype=auto, or start the server with --dtype {wanted}"
        )
    return found


def check_server(info: ServerInfo, masters: Masters) -> None:
    """Refuse a server that cannot play members of the space.

    Raises:
        GermlineError: the message names the flag to start it with.
    """
    if not masters.has_adapter_members:
        return
    flags = adapter_flags(masters)
    if not info.adapters:
        raise _unfit(masters, "was started without adapters", flags)
    rank = adapter_rank(masters)
    if info.max_rank is not None and info.max_rank < rank:
        raise _unfit(masters, f"takes no adapters above rank {info.max_rank}", flags)
    missing = sorted(adapted_modules(masters) - info.target_modules)
    if info.target_modules and missing and "all" not in info.target_modules:
        raise _unfit(masters, f"takes no adapters beside {', '.join(missing)}", flags)
    if info.data_parallel != 1:
        raise _unfit(masters, f"has --dp-size {info.data_parallel}", ["--dp-size", "1", *flags])


def _unfit(masters: Masters, found: str, flags: list[str]) -> GermlineError:
    kind = type(masters.space).__name__
    return GermlineError(
        f"engine.base_url: members of this run are adapters of rank {adapter_rank(masters)} "
        f"({kind}), "
        f"but the server {found}: start it with {' '.join(flags)}"
    )


def adapter_flags(masters: Masters) -> list[str]:
    """Return with what a server must be started for the adapters of a space."""
    modules = sorted(adapted_modules(masters))
    rank = str(adapter_rank(masters))
    return ["--enable-lora", "--max-lora-rank", rank, "--lora-target-modules", *modules]


def adapted_modules(masters: Masters) -> set[str]:
    """Return the kinds of layers beside which adapters stand, such as q_proj."""
    names = (layer.name.removesuffix(".weight") for layer in masters.adapter_layers)
    return {name.rpartition(".")[2] for name in names}


def adapter_rank(masters: Masters) -> int:
    """Return the rank of a space's adapters."""
    return (masters.space and masters.space.adapter_rank) or 0


@torch.inference_mode()
def reference_log_probabilities(model: PreTrainedModel) -> list[float]:
    """Return what the base model here makes of the fixed text: log-probabilities, fp32."""
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
    """Compare what the server makes of the fixed text.

    Raises:
        GermlineError: more differs than rounding explains.
    """
    row = GenerateRequest(
        _probe(model), None, {"max_new_tokens": 0, "temperature": 0.0}, scored_from=0
    )
    (answer,) = client.generate([row])
    differences = [abs(a - b) for a, b in zip(answer.scores, expected, strict=True)]
    difference = sum(differences) / len(differences)
    if not difference <= TOLERANCES[dtype]:
        raise GermlineError(
            f"{client.connection.name}: the server has {info.model}, a {info.architecture}, with "
            f"other weights than model={model.name_or_path}, a {type(model).__name__}: "
            f"log-probabilities of a fixed text differ by {difference:.3g} on average (rounding "
            f"explains {TOLERANCES[dtype]:g}). Start the server with --model-path of that model"
        )


def _probe(model: PreTrainedModel) -> list[int]:
    known = int(model.get_input_embeddings().num_embeddings)
    return [token for token in PROBE if token < known]
