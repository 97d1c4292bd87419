"""Families of models: they train and export what transformers and peft serve, or are refused."""

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Gemma3Config, SiglipVisionConfig, SiglipVisionModel

import germline
from germline.config import Full, Lora, LowRank
from germline.engines.model_tensors import list_tensors
from germline.engines.pretrained import load_pretrained, save_pretrained
from germline.run.dry_run import dry_run
from germline.spaces.peft_files import read_adapter
from germline.types import Decoding, Example, GermlineError, Update
from tests.slow_cases import mostly_slow
from tests.tiny import randomize, save_tiny, tiny_config, tokenizer
from tests.tiny_engines import copy_of, inprocess, population

# What peft calls is deprecated by transformers, and it warns of a Conv1D.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

TEXTS = ("What is 1 + 2?", "What is fox", "the quick brown fox jumps. The answer is 3.")
EXAMPLES = [Example(index, text, "", chat=False) for index, text in enumerate(TEXTS)]
LATENT: dict[str, Any] = {"num_key_value_heads": 4}  # as many as there are heads

QUICK: dict[str, dict[str, Any]] = {
    "apertus": {},  # saved buffers
    "deepseek_v3": LATENT,  # those of experts
    "nemotron": {},  # rotates a part of each head
    "glm4_moe": {},  # peft takes its dense layers for experts
    "phimoe": {},  # its router is a subclass of a linear layer
    "gpt2": {},  # keeps its weights transposed
    "gemma3": {},  # layers of two kinds
    "ctrl": {},  # names of layers are numbers, as those of blocks are
}
PLAIN = (
    "beam falcon llama mixtral opt phi3 qwen3_moe "
    "afmoe arcee biogpt bitnet codegen cohere cohere2 diffllama doge ernie4_5 ernie4_5_moe exaone4 "
    "exaone_moe flex_olmo gemma gemma4_unified_text glm gpt_neox gpt_oss gptj granite granitemoe "
    "helium hunyuan_v1_moe minimax_m2 nanochat olmo3 olmoe persimmon phi seed_oss solar_open "
    "stablelm starcoder2 xglm "
    "cohere2_moe gemma2 glm4 gpt_bigcode granite_swa hy_v3 jais2 jetmoe mimo_v2_flash ministral3 "
    "olmo olmo2 qwen2_moe smollm3 vaultgemma"
)  # gemma4_unified_text has heads of two sizes
LATER = dict.fromkeys(("axk1", "deepseek_v2", "glm4_moe_lite", "minicpm3", "youtu"), LATENT)
LATER["cwm"] = {"bos_token_id": 1, "eos_token_id": 2}
LATER["dots1"] = {"n_shared_experts": 1}
LATER["gpt_neo"] = {"attention_types": [[["global"], 2]]}
LATER["lfm2_moe"] = {"layer_types": ["full_attention"] * 2}
LATER["mistral"] = {"sliding_window": 4}
LATER["modernbert-decoder"] = {**LATER["cwm"], "cls_token_id": 1, "sep_token_id": 2}
FAMILIES = QUICK | {family: {} for family in PLAIN.split()} | LATER
RANDOM = Lora(rank=1, alpha=3, init_scale_b=0.5, unsupported="skip")


def check_log_probabilities(model, engine, completions, found):
    """Compare with those of a plain model, one text at a time; its greedy tokens are the same."""
    for example, completion, ours in zip(EXAMPLES, completions, found, strict=True):
        prompt = engine.encoder.encode(example)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion.tokens]])).logits[0].float()
        before = logits[len(prompt) - 1 : -1].log_softmax(-1)
        assert tuple(before.argmax(-1).tolist()) == completion.tokens
        theirs = before[range(len(completion.tokens)), list(completion.tokens)]
        torch.testing.assert_close(torch.tensor(ours), theirs, atol=1e-3, rtol=1e-3)


def test_saved_buffers_are_narrowed_only_where_that_is_exact(tmp_path):
    source = save_tiny(tmp_path / "base", "deepseek_v3", num_hidden_layers=2, **LATENT)
    loaded = load_pretrained(str(source))
    model = loaded.model
    name = next(name for name in model.state_dict() if name.endswith("e_score_correction_bias"))
    model.get_buffer(name).fill_(0.1)
    save_pretrained(loaded, dict(model.named_parameters()), tmp_path / "saved", torch.bfloat16)
    stored = load_file(tmp_path / "saved" / "model.safetensors")
    assert stored["model.norm.weight"].dtype == torch.bfloat16
    assert torch.equal(stored[name], model.get_buffer(name))


@pytest.mark.parametrize("family", mostly_slow(FAMILIES, QUICK))
def test_a_family_exports_what_its_engine_computes(family, tmp_path):
    source = save_tiny(tmp_path / "base", family, num_hidden_layers=2, **FAMILIES[family])
    loaded = load_pretrained(str(source))
    engine = inprocess(copy_of(loaded), RANDOM)
    engine.apply(Update(3, 0, 0.02, 0.1, (0.5, -1.0, 0.25)))
    completions = engine.generate([None], EXAMPLES, Decoding(max_new_tokens=8))[0]
    found = engine.log_probabilities([None], EXAMPLES, [completions])[0]
    engine.save_model(tmp_path / "merged")
    engine.save_adapter(tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").eval()
    check_log_probabilities(merged, engine, completions, found)
    stored, written = (
        load_file(path / "model.safetensors") for path in (source, tmp_path / "merged")
    )
    assert stored.keys() == written.keys()
    saved = {name for name, _ in base.named_buffers()} & stored.keys()
    assert all(torch.equal(stored[name], written[name]) for name in saved)
    adapted = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
    check_log_probabilities(adapted, engine, completions, found)
    read = read_adapter(tmp_path / "adapter").tensors_beside(engine.weights.base)
    assert read.keys() == set(engine.weights.searched)
    assert all(torch.equal(read[info], engine.weights.tensors[info.name]) for info in read)
    # Members of the full space, which may be stacked.
    together = inprocess(copy_of(loaded), Full())
    texts = [completions] * 2
    stacked = together.log_probabilities(population(2).members, EXAMPLES, texts)
    alone = inprocess(loaded, Full(), members_per_batch=1)
    expected = alone.log_probabilities(population(2).members, EXAMPLES, texts)
    for ours, theirs in zip(chain(*stacked), chain(*expected), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3)


def test_an_adapter_that_peft_would_rename_is_refused_by_name(tmp_path):
    source = save_tiny(tmp_path / "base", "laguna", num_hidden_layers=2)
    engine = inprocess(str(source), RANDOM)
    renamed = r"shared_experts\.gate_proj as .* family laguna, .*merged model"
    with pytest.raises(GermlineError, match=renamed):
        engine.save_adapter(tmp_path / "adapter")
    assert not (tmp_path / "adapter").exists()
    engine.save_model(tmp_path / "merged")


@pytest.mark.parametrize(
    ("family", "settings", "cause"),
    [
        ("bart", {}, "takes no position_ids"),
        ("bloom", {}, "takes no position_ids"),
        ("falcon", {"alibi": True}, "has attention biases"),
        ("gpt_neo", {"attention_types": [[["global", "local"], 1]]}, "has layers of local"),
        ("jamba", {}, "has layers of linear_attention"),
        ("mamba", {}, "has layers of linear_attention"),
        ("mamba2", {}, "has layers of linear_attention"),
        ("openai-gpt", {}, "takes no past_key_values"),
        ("rwkv", {}, "keeps a recurrent state"),
    ],
)
def test_a_family_that_cannot_share_a_cache_is_refused(family, settings, cause, tmp_path):
    save_tiny(tmp_path / "model", family, num_hidden_layers=2, **settings)
    config = {"model": str(tmp_path / "model"), "engine": {"device": "cpu"}, "task": "arithmetic"}
    config["space"] = "full"
    with pytest.raises(GermlineError, match=f"cannot serve the family {family}, which {cause}"):
        dry_run(config)
    with pytest.raises(GermlineError, match=f"cannot serve the family {family}, which {cause}"):
        germline.train(config, tmp_path / "run")


def test_a_family_whose_config_looks_well_is_refused_where_its_logits_differ(tmp_path, monkeypatch):
    source = save_tiny(tmp_path / "model")
    attention = "transformers.models.qwen2.modeling_qwen2.Qwen2RotaryEmbedding.forward"
    plain = __import__(attention.rsplit(".", 2)[0], fromlist=["x"]).Qwen2RotaryEmbedding.forward

    def by_cache(self, x, position_ids):  # counts from the start of the batch, as alibi does
        return plain(self, x, torch.zeros_like(position_ids) + position_ids.max())

    monkeypatch.setattr(attention, by_cache)
    with pytest.raises(GermlineError, match="other logits where texts of different lengths"):
        inprocess(str(source))


@pytest.mark.parametrize("space", [Full(), Full(layers="0-1"), LowRank(), Lora()])
def test_matrices_that_text_cannot_feel_are_not_searched(space, tmp_path):
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    vision |= {"num_hidden_layers": 3, "image_size": 28, "patch_size": 14}
    config = Gemma3Config(
        text_config=tiny_config("gemma3", num_hidden_layers=2).to_dict(),
        vision_config={**vision, "vision_use_head": False},
        mm_tokens_per_image=4,
        image_token_index=5,
    )
    model = AutoModelForCausalLM.from_config(config)
    randomize(model)
    kinds = {info.name: (info.kind, info.layer) for info in list_tensors(model)}
    towers = {name for name in kinds if "language_model" not in name}
    assert len(towers) > 40
    assert {kinds[name] for name in towers} == {("non_text", None)}
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    engine = inprocess(str(tmp_path), space)
    names = {info.name for info in engine.weights.searched}
    assert len(names) >= 14
    assert not names & towers
    with pytest.raises(GermlineError, match="layers: '2'"):
        inprocess(str(tmp_path), space.model_copy(update={"layers": "2"}))
    member = population(2, sigma=0.1).members[0]
    tokens = torch.arange(30, 40)[None]
    assert not torch.equal(engine.logits(member, tokens), engine.logits(None, tokens))


def test_a_part_of_another_input_within_the_decoder_is_not_searched(monkeypatch):
    model = AutoModelForCausalLM.from_config(tiny_config("qwen2", num_hidden_layers=1))
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    sizes = {"num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    model.model.vision = SiglipVisionModel(SiglipVisionConfig(**vision, **sizes))
    monkeypatch.setattr(type(model.config), "sub_configs", {"vision_config": SiglipVisionConfig})
    kinds = {info.name: info.kind for info in list_tensors(model)}
    towers = {name for name in kinds if ".vision." in name}
    assert len(towers) > 10
    assert {name for name, kind in kinds.items() if kind == "non_text"} == towers


def test_texts_for_which_longrope_would_change_the_angles_of_a_batch_are_refused(tmp_path):
    factors = {"short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    settings: dict[str, Any] = {"original_max_position_embeddings": 32, "rope_parameters": rope}
    source = save_tiny(tmp_path / "model", "phi3", **settings)
    engine = inprocess(str(source))
    short, long = EXAMPLES[:2], replace(EXAMPLES[0], prompt="fox " * 30)
    alone = engine.generate([None], short, Decoding(max_new_tokens=4))
    with pytest.raises(GermlineError, match="model's context of 32"):
        engine.generate([None], [*short, long], Decoding(max_new_tokens=4))
    assert engine.generate([None], short, Decoding(max_new_tokens=4)) == alone
    config = {"model": str(source), "engine": {"device": "cpu"}, "task": "countdown"}
    with pytest.raises(GermlineError, match="model's context of 32"):
        germline.train(config, tmp_path / "run")
