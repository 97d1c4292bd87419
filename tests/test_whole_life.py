"""A run at the shape of Qwen2.5-0.5B: trained, killed, resumed, replayed and exported.

In bf16 where the processor has AVX-512: others take six times as long for it as for fp32.
"""

import shutil

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from benchmarks.dtypes import logit_bound
from benchmarks.published_shapes import SHAPES, random_model
from germline.config import load_config
from germline.record import RunDirectory
from germline.run import evaluate, export, generate, replay
from tests.tiny import CHAT_TEMPLATE
from tests.toy_runs import journal
from tests.victims import Victim

GENERATIONS = 3
DTYPE = "bfloat16" if "AVX512" in torch.backends.cpu.get_cpu_capability() else "float32"
ENGINE = ("engine.device=cpu", f"engine.dtype={DTYPE}", "engine.threads=1")
PROMPTS = ["What is 1 + 2?", "the quick brown fox", "Why?"]


def save_random(shape, folder):
    """Write a random model whose every token is a text of its own, so that rewards differ."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random_model(shape).save_pretrained(folder)
    bytes_of_text = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"Ġ{'x' * (number % 7)}{number}" for number in range(SHAPES[shape]["vocab_size"])]
    vocabulary = [*bytes_of_text, *words][: len(words)]
    core = Tokenizer(models.BPE({word: place for place, word in enumerate(vocabulary)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=core, chat_template=CHAT_TEMPLATE).save_pretrained(
        folder
    )


def config(model):
    return load_config(
        {
            "model": str(model),
            "task": {"kind": "conciseness", "max_new_tokens": 4, "temperature": 1.0},
            "space": "low_rank",
            "strategy": {"population": 2, "sigma": 0.002, "learning_rate": 0.001},
            "engine": {"kind": "inprocess"},
            "batch_size": 1,
            "generations": GENERATIONS,
            "held_out": {"examples": 2, "every": GENERATIONS},
            "record": {"snapshot_every": 2, "tensorboard": False, "figure_every": 1000},
        },
        ENGINE,
    )


def killed_in_the_second_generation(config, out):
    """Train in a process of its own until a generation is on disk, kill it, and go on."""
    victim = Victim(config, out)
    victim.wait_for(2)  # ready, and generation 0
    victim.kill()
    assert len(journal(out).splitlines()) < GENERATIONS
    Victim(config, out).finish()
    return out


def undisturbed(config, out):
    Victim(config, out).finish()
    return out


@torch.inference_mode()
def assert_transformers_writes_the_texts_of(run, model):
    """Plain transformers, one prompt at a time, chooses what the run chose, or a tie with it."""
    found = generate(str(run), PROMPTS, chat=False, max_new_tokens=8)
    plain = AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval()
    assert plain.dtype == getattr(torch, DTYPE)
    words = PreTrainedTokenizerFast.from_pretrained(model)
    for prompt, completion in zip(PROMPTS, found, strict=True):
        ids = words(prompt)["input_ids"]
        logits = plain(torch.tensor([[*ids, *completion.tokens[:-1]]])).logits[0, len(ids) - 1 :]
        chosen = logits.gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
        bound = logit_bound(DTYPE, plain.config.num_hidden_layers, logits)
        # Both are off by at most the bound from the model in exact arithmetic.
        assert (logits.max(1).values - chosen).max() <= 4 * bound


@pytest.fixture
def place(tmp_path):
    """A folder that is emptied at once: 6 GB, and pytest keeps the folders of three sessions."""
    yield tmp_path
    shutil.rmtree(tmp_path)


@pytest.mark.slow
def test_a_run_at_the_shape_of_qwen_0_5b_survives_all_that_happens_to_runs(place):
    save_random("Qwen2.5-0.5B", place / "base")
    settings = config(place / "base")
    run = killed_in_the_second_generation(settings, place / "killed")
    assert journal(run) == journal(undisturbed(settings, place / "undisturbed"))

    entries = RunDirectory.open(run).journal.read()
    digests = [entry.digest for entry in entries]
    assert len(set(digests)) == GENERATIONS
    assert replay(run, GENERATIONS - 1) == digests[-1]

    export(run, place / "model")
    assert_transformers_writes_the_texts_of(run, place / "model")
    score, _ = evaluate(
        str(place / "model"), settings.task, limit=2, overrides=ENGINE, out=place / "completions"
    )
    own = RunDirectory.open(run).held_out()[-1].score
    assert (score.mean, score.standard_error, score.n) == (own.mean, own.standard_error, own.n)
