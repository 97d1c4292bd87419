"""The name of a tensor's noise in one generation, and the constants of its construction."""

from dataclasses import dataclass

import numpy as np

from germline import noise


@dataclass(frozen=True, slots=True)
class NoiseStream:
    """The noise of one tensor in one generation; see `germline.noise` for its construction.

    Attributes:
        name: canonical Hugging Face name of the tensor, or of a factor of it.
    """

    run_seed: int
    generation: int
    name: str

    @property
    def key(self) -> tuple[int, int]:
        """Return the Philox key."""
        first, second = noise.weights_key(self.run_seed, self.name)
        return first, second


def as_signed(word: int) -> int:
    """Return the number whose 64 bits, in two's complement, are those of an unsigned word."""
    return int(np.uint64(word).astype(np.int64))


def philox_blocks(count: int, start: int) -> tuple[int, int]:
    """Return the first Philox block of these elements, and the block after the last."""
    return start // SAMPLES_PER_BLOCK, -(-(start + count) // SAMPLES_PER_BLOCK)


SAMPLES_PER_BLOCK = 16
ROUNDS = 10
LEFT, RIGHT = 0xD2E7470EE14C6C93, 0xCA5A826395121157
"""Multipliers of counter words 0 and 2 (Salmon et al. 2011, as in Random123)."""
BUMPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
"""Added to the words of the key from round to round."""
