"""Read the header of a GGUF file, and refuse a file that cannot become a model.

A GGUF file (github.com/ggml-org/ggml, docs/gguf.md) begins with settings and a table of tensors.
The package `gguf` reads it in seconds, most of which it spends on the vocabulary, and takes a
damaged length for a real one. So the header is read here, within the bounds of the file.
"""

import math
import mmap
import re
import struct
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from germline.types import GermlineError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Type of a value in the file -> its format in `struct`."""
STRING, ARRAY = 8, 9
SHARD = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
NEEDED = ("gguf", "accelerate")
"""Packages with which transformers reads GGUF files."""


class GgufTensor(NamedTuple):
    """A tensor in the table of a file.

    Attributes:
        kind: the number of its quantization type.
        numbers: how many it holds.
        offset: of its first byte from the end of the header.
    """

    name: str
    kind: int
    numbers: int
    offset: int


class GgufHeader(NamedTuple):
    """The settings and the tensors of a file; of settings that are lists, only the length."""

    settings: dict[str, int | float | str]
    tensors: tuple[GgufTensor, ...]
    bytes: int


def check_gguf(file: Path) -> GgufHeader:
    """Read the header of a file that transformers can load as a model.

    Raises:
        GermlineError: the file is missing, damaged, cut short, a part or only a vocabulary, or has
            an unknown quantization; or a package is not installed.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise GermlineError(
            f"model={file} needs the package {' and '.join(missing)}: pip install 'germline[gguf]'"
        )
    if not file.is_file():
        raise GermlineError(
            f"model={file}: there is no such file: name a GGUF file, a Hugging Face model folder, "
            "a hub id, or 'nano'"
        )
    header = _read_header(file)
    if SHARD.search(file.name) or int(header.settings.get("split.count", 1)) > 1:
        raise GermlineError(
            f"model={file} is one part of a model in several files: join them first "
            "(llama-gguf-split --merge FIRST_PART OUT.gguf), or give the Hugging Face folder of "
            "the model"
        )
    if not header.tensors:
        raise GermlineError(
            f"model={file} holds a vocabulary and no weights: give the GGUF file of the model"
        )
    _check_tensors(file, header)
    return header


def _check_tensors(file: Path, header: GgufHeader) -> None:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    end = 0
    for tensor in header.tensors:
        try:
            kind = GGMLQuantizationType(tensor.kind)
            numbers, size = GGML_QUANT_SIZES[kind]
            dequantize(np.zeros(size, np.uint8), kind)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise GermlineError(
                f"model={file}: {tensor.name} has a quantization that the package gguf cannot "
                f"turn into floats ({error}): give a file in another one, such as Q8_0 or F16, or "
                "update gguf"
            ) from None
        end = max(end, tensor.offset + tensor.numbers // numbers * size)
    found = file.stat().st_size
    if found < header.bytes + end:
        raise GermlineError(
            f"model={file} is cut short: its header describes {header.bytes + end} bytes, the file "
            f"has {found}; get it again"
        )


def _read_header(file: Path) -> GgufHeader:
    with file.open("rb") as opened:
        if (found := opened.read(len(MAGIC))) != MAGIC:
            raise GermlineError(
                f"model={file} is no GGUF file: it begins with {found!r} and not {MAGIC!r}; get it "
                "again, or give a Hugging Face model folder"
            )
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Reader(data).header()
            except (ValueError, OverflowError) as error:
                raise GermlineError(
                    f"model={file} is damaged or cut short: its header cannot be read ({error}); "
                    "get it again"
                ) from None


class _Reader:
    """Reads the bytes of a file from the first to the last of its header."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, len(MAGIC)

    def header(self) -> GgufHeader:
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"it is of version {version}, known are 2 and 3")
        tensors, settings = self._number("Q"), self._number("Q")
        values = {}
        for _ in range(settings):
            name = self._string()
            values[name] = self._value(self._number("I"))
        table = tuple(self._tensor() for _ in range(tensors))
        alignment = int(values.get("general.alignment", 32))
        return GgufHeader(values, table, -(-self._at // alignment) * alignment)

    def _tensor(self) -> GgufTensor:
        name = self._string()
        numbers = math.prod(self._number("Q") for _ in range(self._number("I")))
        return GgufTensor(name, self._number("I"), numbers, self._number("Q"))

    def _value(self, kind: int) -> int | float | str:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            value: int | float = self._number(_format(kind))
            return value
        element, length = self._number("I"), self._number("Q")
        if element != STRING:
            self._skip(length * struct.calcsize(_format(element)))
            return length
        for _ in range(length):
            self._skip(self._number("Q"))
        return length

    def _number(self, kind: str) -> Any:  # an int; of the kinds f and d a float
        start = self._at
        self._skip(struct.calcsize(kind))
        (value,) = struct.unpack_from(f"<{kind}", self._data, start)
        return value

    def _string(self) -> str:
        length = self._number("Q")
        start = self._at
        self._skip(length)
        return self._data[start : self._at].decode()

    def _skip(self, size: int) -> None:
        self._at += size
        if self._at > len(self._data):
            raise ValueError(f"the file of {len(self._data)} bytes ends within it")


def _format(kind: int) -> str:
    if kind not in NUMBERS:
        raise ValueError(f"a setting has the unknown type {kind}")
    return NUMBERS[kind]
