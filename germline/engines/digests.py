"""Digests of tensors: a tree whose leaves are the tensors, so that frozen tensors are hashed once.

    leaf = SHA-256(name ":" shape ":" little-endian fp32 values)
    digest = SHA-256(leaves in canonical order)

The values are fp32 whatever the dtype of a tensor: bf16 and fp16 convert to fp32 exactly, chunk by
chunk, so that a digest needs no fp32 copy of a tensor.
"""

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import torch
from torch import Tensor

CHUNK = 1 << 20
"""Numbers hashed at once: the fp32 values of a chunk take 4 MB."""

FEW = 1 << 16
"""Up to so many numbers are hashed without threads: 256 KB take a fraction of a millisecond."""


def tensor_digests(
    tensors: Mapping[str, Tensor], names: Iterable[str] | None = None
) -> dict[str, bytes]:
    """Hash tensors by name (None: all), as many at once as torch has threads.

    At least two threads hash, because hashing releases the interpreter lock and does not use
    OpenMP's threads. Few numbers are hashed sooner than a thread starts. A mapping that reads a
    file is asked for a tensor only when it is hashed.
    """
    chosen = list(tensors if names is None else names)
    numbers = accumulate(tensors[name].numel() for name in chosen)
    if all(number <= FEW for number in numbers):
        return {name: _leaf(name, tensors[name]) for name in chosen}
    with ThreadPoolExecutor(max_workers=max(2, torch.get_num_threads())) as threads:
        leaves = threads.map(lambda name: _leaf(name, tensors[name]), chosen)
        return dict(zip(chosen, leaves, strict=True))


def root_digest(leaves: Iterable[bytes]) -> str:
    """Return the digest of tensors whose leaves are given in canonical order."""
    return hashlib.sha256(b"".join(leaves)).hexdigest()


def _leaf(name: str, tensor: Tensor) -> bytes:
    leaf = hashlib.sha256(f"{name}:{list(tensor.shape)}:".encode())
    for chunk in tensor.detach().reshape(-1).split(CHUNK):
        # Copied to the host before the conversion: half precision is half the bytes.
        leaf.update(chunk.cpu().float().numpy().astype("<f4", copy=False).data)
    return leaf.digest()
