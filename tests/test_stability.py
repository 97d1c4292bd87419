"""The stability benchmark: its curves, its table, and nano reparametrized to the same function."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks import stability
from benchmarks.stability import Cell, Curve, rows, tuned_rate


def curve(scores, *, method="default", seed=0, lower=False):
    cell = Cell("arithmetic", "low_rank", method, seed)
    places = list(range(0, 10 * len(scores), 10))
    return Curve(cell, places, [100 * one for one in places], scores, 1.0, -1 if lower else 1)


def test_the_drop_is_from_the_best_score_on_the_way():
    assert curve([0.1, 0.9, 0.7]).drop() == pytest.approx(0.2)
    assert curve([9.0, 1.0, 4.0], lower=True).drop() == pytest.approx(3.0)
    assert curve([0.1, 0.9]).drop() == 0


def test_rollouts_to_a_score_are_read_between_two_scores():
    assert curve([0.0, 0.5, 1.0]).rollouts_to(0.75) == pytest.approx(1500)
    assert curve([9.0, 1.0], lower=True).rollouts_to(5.0) == pytest.approx(500)
    assert curve([0.5, 0.6]).rollouts_to(0.5) == 0
    assert curve([0.5, 0.6]).rollouts_to(0.7) == math.inf


def test_the_tuned_rate_is_the_one_that_ends_best():
    found = {"default": [curve([0, 1])], "rate 1": [curve([0, 0.5])], "rate 2": [curve([0, 0.4])]}
    assert tuned_rate(found) == "rate 1"
    assert tuned_rate({"default": [curve([0, 1])]}) is None
    tie = {"rate 1": [curve([0.0, 0.5, 1.0])], "rate 2": [curve([0.0, 0.9, 1.0])]}
    assert tuned_rate(tie) == "rate 2"


def test_the_table_says_how_many_times_fewer_rollouts_were_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(stability, "RESULTS", tmp_path)
    for one in (curve([0.0, 1.0, 1.0]), curve([0.0, 0.5, 1.0], method="rate 1")):
        stability.save(one)
    _head, _line, ours, theirs = rows(["arithmetic"], ["low_rank"], ["default", "rate 1"], 10)
    assert ours == "| arithmetic | low_rank | default | 1 | 1 | 1 | 0 | 900 | 2 [2, 2] |"
    assert theirs.startswith("| arithmetic | low_rank | rate 1 (tuned) | 1 | 1 | 1 | 0 | 1,800 |")


def test_a_reparametrized_nano_is_the_same_function(tmp_path, monkeypatch):

    from germline.nano import NANO_DIR

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = AutoModelForCausalLM.from_pretrained(stability.reparametrized())
    nano = AutoModelForCausalLM.from_pretrained(NANO_DIR)
    tokens = torch.arange(40)[None]
    assert torch.allclose(nano(tokens).logits, other(tokens).logits, atol=1e-4)
    up = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(3 * nano.state_dict()[up], other.state_dict()[up])
