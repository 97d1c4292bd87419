"""A sequence classifier of Hugging Face that scores batches of texts, whatever else is in a batch.

The score of a text should not depend on the texts beside it. Every forward pass therefore has a
fixed number of rows, and every text is padded to a length that depends on the text alone: the
next power of two. What is left are differences of rounding between rows of one matrix product.

Reward models of PKU-SafeRLHF (`LlamaModelForScore`) are loaded as the sequence classifiers they
are; their scores are not normalized, as in their own inference code.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from germline.config.scorers import Classifier, ClassifierSettings
from germline.engines.inprocess import torch_device
from germline.engines.model_tensors import serving_dtype
from germline.engines.pretrained import check_finite, loading_errors
from germline.engines.prompt_batch import at_date
from germline.scorers import Item, NotScoredError, Score, Scorer, missing, scored_text, sendable
from germline.types import GermlineError

log = logging.getLogger(__name__)

BATCHES_AT_A_TIME = 8
"""Batches whose texts are sorted by length together."""

SHORTEST_PADDED = 32
"""Tokens to which the shortest texts are padded."""

LONGEST_DEFAULT = 4096
"""Largest default of `max_tokens`: the context of long models would take too much memory."""

DATE = "2024-07-26"
"""What a chat template reads from the clock: scores are the same on every day. Llama's default."""

PKU_HEAD = "ForScore"
"""In the name of an architecture: a reward or cost model of PKU-SafeRLHF."""


class SequenceClassifier(Scorer):
    """A loaded classifier, which one thread at a time uses; it sorts its batches by length.

    `source` is a folder or a Hugging Face id; `name_of` returns the name of a setting in errors.
    """

    def __init__(
        self, source: str, settings: ClassifierSettings, name_of: Callable[[str], str]
    ) -> None:
        self._source, self._has_truncated = source, False
        device = torch_device(settings.device, name_of("device"))
        with loading_errors(source, name_of("model")):
            config = AutoConfig.from_pretrained(source)
            self._tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
            stored = getattr(config, "dtype", None)
            dtype = serving_dtype(
                settings.dtype,
                stored if isinstance(stored, torch.dtype) else torch.float32,
                on_gpu=device.type != "cpu",
            )
            model, report = _load(source, config, dtype)
        if lacking := sorted(report["missing_keys"]):  # which the library draws at random
            raise GermlineError(
                f"{name_of('model')}: {source!r} does not hold {', '.join(lacking[:3])}: it is no "
                "sequence classifier (a reward model with a head of scores); a language model "
                "without one can be a judge, kind=judge"
            )
        check_finite(source, model, name_of("model"))
        self._model = model.eval().requires_grad_(requires_grad=False).to(device)
        self._device = device
        self._template = settings.template
        self._rows = settings.batch_size
        self.batch_size = BATCHES_AT_A_TIME * settings.batch_size
        self._is_probability = settings.output == "probability"
        self._column = _column(source, model.config, settings.label, name_of)
        context = getattr(config.get_text_config(), "max_position_embeddings", None)
        limits = (LONGEST_DEFAULT, self._tokenizer.model_max_length, context)
        self._max_tokens = settings.max_tokens or min(int(limit) for limit in limits if limit)

    @classmethod
    def from_config(cls, config: Classifier, setting: str) -> "SequenceClassifier":
        """Load the classifier of a scorer; `setting` is its section in errors."""
        return cls(config.model, config, lambda name: f"{setting}.{name}")

    def score(self, items: Sequence[Item]) -> list[Score]:
        """Return the score of every completion, in order."""
        encoded: dict[int, list[int]] = {}
        scores: dict[int, Score] = {}
        for place, item in enumerate(items):
            try:
                encoded[place] = self.encode_pair(item)
            except NotScoredError as error:
                scores[place] = missing(str(error))
        scores |= zip(encoded, self.score_ids(list(encoded.values())), strict=True)
        return [scores[place] for place in range(len(items))]

    def encode_pair(self, item: Item) -> list[int]:
        """Encode a prompt and its completion as the template says."""
        text, example = item
        if self._template is not None or not self._tokenizer.chat_template:
            return self.encode_text(
                scored_text(self._template or "lines", text, example),
                append_eos=self._template == "pku",
            )
        turns = [*example.context, ("user", example.prompt), ("assistant", text)]
        messages = [{"role": role, "content": sendable(content)} for role, content in turns]
        try:
            template = at_date(str(self._tokenizer.get_chat_template()), DATE)
            chat = self._tokenizer.apply_chat_template(
                messages, chat_template=template, tokenize=False
            )
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            raise NotScoredError(
                f"the chat template of the classifier fails ({error}): set template=lines"
            ) from None
        return self.encode_text(str(chat), add_special_tokens=False)

    def encode_text(
        self, text: str, *, append_eos: bool = False, add_special_tokens: bool = True
    ) -> list[int]:
        """Return the token ids of a text, cut to the model's limit; the log says so once."""
        end = [self._tokenizer.eos_token_id] if append_eos else []
        limit = max(1, self._max_tokens - len(end))
        special = {"add_special_tokens": add_special_tokens}
        whole = self._ids(text, special)
        if len(whole) > limit:
            if not self._has_truncated:
                log.warning("%s: texts of more than %d tokens are cut", self._source, limit)
            self._has_truncated = True
            whole = self._ids(text, {**special, "truncation": True, "max_length": limit})
        # A model cannot read nothing; any token stands for an empty text.
        return [*whole, *end] or [self._tokenizer.eos_token_id or 0]

    def score_ids(self, texts: Sequence[Sequence[int]]) -> list[Score]:
        """Return the score of every text, given by its token ids, in order."""
        by_length: dict[int, list[int]] = {}
        for place, text in enumerate(texts):
            longer = max(SHORTEST_PADDED, 1 << (len(text) - 1).bit_length())
            length = min(longer, max(len(text), self._max_tokens))
            by_length.setdefault(length, []).append(place)
        scores: dict[int, Score] = {}
        for length, places in sorted(by_length.items()):
            for start in range(0, len(places), self._rows):
                rows = places[start : start + self._rows]
                values = self._forward([texts[place] for place in rows], length)
                for place, value in zip(rows, values, strict=True):
                    scores[place] = (
                        Score(value)
                        if math.isfinite(value)
                        else missing(f"the classifier's output is {value}")
                    )
        return [scores[place] for place in range(len(texts))]

    def _ids(self, text: str, options: dict[str, Any]) -> list[int]:
        ids: list[int] = self._tokenizer(sendable(text), verbose=False, **options)["input_ids"]
        return ids

    @torch.inference_mode()
    def _forward(self, rows: Sequence[Sequence[int]], length: int) -> list[float]:
        """Run one batch of fixed shape; rows without a text are filled with its first text."""
        filled = [*rows, *[rows[0]] * (self._rows - len(rows))]
        # A decoder finds the last token of a row as the last one that is not padding, by its id; so
        # padding is an id that no row ends with. The model ignores the padding itself.
        last, usual = {ids[-1] for ids in filled}, self._tokenizer.pad_token_id
        candidates = (usual, *range(len(last) + 1))
        pad = next(token for token in candidates if token is not None and token not in last)
        self._model.config.get_text_config().pad_token_id = pad
        self._model.config.pad_token_id = pad
        ids = torch.full((len(filled), length), pad)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(filled):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        logits = self._model(
            input_ids=ids.to(self._device), attention_mask=mask.to(self._device)
        ).logits.float()
        if self._is_probability:
            logits = logits.softmax(-1) if logits.shape[-1] > 1 else logits.sigmoid()
        values: list[float] = logits[: len(rows), self._column].tolist()
        return values


def _load(
    source: str, config: PreTrainedConfig, dtype: torch.dtype
) -> tuple[PreTrainedModel, dict[str, Any]]:
    options = {"config": config, "dtype": dtype, "output_loading_info": True}
    architecture = next(iter(getattr(config, "architectures", None) or ()), "")
    if PKU_HEAD not in architecture:
        loaded = AutoModelForSequenceClassification.from_pretrained(source, **options)
        return loaded[0], loaded[1]
    config.num_labels = getattr(config, "score_dim", 1)
    base = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]

    class WithBias(base):  # type: ignore[misc, valid-type]
        """The classifier with a bias in its head, as PKU-SafeRLHF trains it."""

        def __init__(self, config: PreTrainedConfig) -> None:
            super().__init__(config)
            self.score = torch.nn.Linear(config.hidden_size, config.num_labels)

    model, report = WithBias.from_pretrained(
        source, key_mapping={r"^score_head\.": "score."}, **options
    )
    if "score.bias" in report["missing_keys"]:
        torch.nn.init.zeros_(model.score.bias)
        report["missing_keys"] = {*report["missing_keys"]} - {"score.bias"}
    return model, report


def _column(
    source: str, config: PreTrainedConfig, label: int | str | None, name_of: Callable[[str], str]
) -> int:
    labels = [str(config.id2label.get(index, index)) for index in range(config.num_labels)]
    classes = ", ".join(f"{index} ({name})" for index, name in enumerate(labels))
    if label is None and len(labels) == 1:
        return 0
    if label in labels:
        return labels.index(str(label))
    if str(label).isdecimal() and int(str(label)) < len(labels):
        return int(str(label))
    raise GermlineError(
        f"{name_of('label')}={label}: {source!r} has {len(labels)} classes: use one of {classes}"
    )
