"""Memory of the sequence classifiers that score completions in the training process.

With s the bytes of a number in the dtype of the classifier:

    weights       numbers x s                                                                (1)
    a batch       rows x length x (3 inner + 4 hidden + keys and values) x s                 (2)

(1) is allocated during the whole run, (2) while completions are generated, because they are scored
meanwhile. The length is that of the longest prompt and completion, with padding.

Limits: lengths are in tokens of the trained model and not of the classifier; an encoder keeps no
keys and values, so its batch is estimated too large.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from germline.config import Config
from germline.config.scorers import Classifier
from germline.engines.dtypes import serving_dtype
from germline.estimates.memory import Part, Place
from germline.estimates.model_shape import ModelShape, classifier_shape_of
from germline.estimates.workload import TextLengths
from germline.scorers.sequence_classifier import LONGEST_DEFAULT, padded_length


class ClassifierModel(NamedTuple):
    """A classifier of a config.

    Attributes:
        setting: its section, as an override spells it.
        config: its settings.
    """

    setting: str
    config: Classifier


def classifiers(config: Config) -> list[ClassifierModel]:
    """Return the classifiers that a run loads."""
    return [
        ClassifierModel(setting, scorer)
        for setting, scorer in config.scorers.items()
        if isinstance(scorer, Classifier)
    ]


def scorer_parts(config: Config, texts: TextLengths, *, on_gpu: bool) -> Iterator[Part]:
    """Yield the memory of every classifier, except of those on another GPU than the engine.

    Raises:
        GermlineError: the config.json of a classifier cannot be read.
    """
    for setting, scorer in classifiers(config):
        place = _place(scorer.device, getattr(config.engine, "device", "auto"), on_gpu=on_gpu)
        if place is None:
            continue
        shape = classifier_shape_of(scorer.model, f"{setting}.model")
        dtype = serving_dtype(scorer.dtype, shape.config_dtype, on_gpu=place == "device")
        yield Part(setting, shape.numbers * dtype.itemsize, place)
        batch = _batch_bytes(scorer, shape, texts, dtype)
        yield Part(f"{setting}, a batch", batch, place, "generation")


def _batch_bytes(
    scorer: Classifier, shape: ModelShape, texts: TextLengths, dtype: torch.dtype
) -> int:
    """Return equation (2)."""
    most = scorer.max_tokens or LONGEST_DEFAULT
    tokens = scorer.batch_size * padded_length(min(texts.prompt + texts.new_tokens, most), most)
    return tokens * (3 * shape.inner + 4 * shape.hidden + shape.kv_numbers) * dtype.itemsize


def _place(device: str, of_engine: str, *, on_gpu: bool) -> Place | None:
    if device == "cpu" or not on_gpu:
        return "host"
    one, other = (name.partition(":")[2] or "0" for name in (device, of_engine))
    return "device" if one == other else None
