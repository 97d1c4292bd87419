"""Whether the models of a family decode in batches with the cache of `engine.kind=inprocess`."""

from inspect import signature

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel

from germline.engines.decode import DecodeBatch
from germline.engines.kv_cache import FULL, SLIDING
from germline.engines.prompt_batch import pad_prompts
from germline.types import GermlineError

TOKENS = ((5, 11, 23, 47, 95, 60, 17), (5, 11, 31, 83))
"""Two texts with a common beginning, so that there is padding within the shorter one."""

INCOMPATIBLE = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""Errors of a model that takes the arguments of the cache but works differently."""

ROUNDING = (0.3, 1e-3)
"""Largest relative difference of a model's logits in half precision, and in fp32."""


def unserved_family(config: PreTrainedConfig) -> str | None:
    """Say why models of a family cannot decode with this cache; None where they may.

    The answer needs no weights: it follows from the kinds of layers and from the arguments of the
    model's forward. `check_cached_logits` tries a model that is loaded.
    """
    text = config.get_text_config(decoder=True)
    layers = getattr(text, "layer_types", None) or getattr(text, "attention_layers", None)
    kinds = set(layers or ()) - {FULL, SLIDING, "global"}  # local ones, of GPT-Neo, count slots
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    lacking = {"position_ids", "past_key_values"} - signature(model.forward).parameters.keys()
    if kinds:
        found = f"has layers of {', '.join(sorted(kinds))}, and not only {FULL} and {SLIDING}"
    elif model._is_stateful:
        found = "keeps a recurrent state instead of keys and values"
    elif getattr(text, "alibi", False):
        found = "has attention biases that count from the start of the cache (alibi)"
    elif lacking:
        found = f"takes no {' and no '.join(sorted(lacking))}"
    else:
        return None
    return _refusal(config, found)


def _refusal(config: PreTrainedConfig, found: str) -> str:
    return (
        f"model: engine.kind=inprocess cannot serve the family {config.model_type}, which {found}: "
        "use a model of another family, or engine.kind=vllm"
    )


@torch.inference_mode()
def check_cached_logits(model: PreTrainedModel) -> None:
    """Decode a batch of two lengths with a cache, and compare with the model's plain forward.

    Families that count positions by the cache, or have biases for distances in it, compute other
    logits where there is padding.
    """
    rows = [
        [token % model.get_input_embeddings().num_embeddings for token in row] for row in TOKENS
    ]
    read, new = [row[:-1] for row in rows], torch.tensor([row[-1] for row in rows])
    try:
        prompts = pad_prompts(read, padding_id=0)
        batch = DecodeBatch.of(model, prompts, torch.tensor([[0, 1]]), torch.empty(2, 1))
        batch.prefill()
        cached = batch.step(new.to(model.device)).float()
    except torch.OutOfMemoryError:
        raise
    except INCOMPATIBLE as error:
        found = f"does not decode with a shared cache ({type(error).__name__}: {error})"
        raise GermlineError(_refusal(model.config, found)) from error
    texts = (torch.tensor([row], device=model.device) for row in rows)
    plain = torch.cat([model(text, use_cache=False).logits[:, -1].float() for text in texts])
    limit = ROUNDING[model.dtype == torch.float32] * (plain - plain.mean(-1, keepdim=True)).norm()
    if (cached - plain).norm() > limit:
        found = "computes other logits where texts of different lengths share a batch"
        raise GermlineError(_refusal(model.config, found))
