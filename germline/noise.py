"""Every random number of a run, as a pure function of its name, never of earlier draws.

A sample of weight noise is named by (run seed, generation, direction, canonical tensor name,
element) and by nothing else, so every engine, shard, chunk and resumed run draws the same one.
There is no generator to seed, save or share: drawing a sample again gives the same bits.

**Construction, frozen by `NOISE_VERSION`** (journals record it; old runs replay only with it):

- Bits: Philox 4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), bit for
  bit that of `numpy.random.Philox`, which computes it here.
- Key: the first 16 bytes, as two little-endian words, of the SHA-256 of five fields, each preceded
  by its length in 8 little-endian bytes: "germline noise"; "1" (the version); the domain, one of
  "weights", "sampling", "order"; the run seed as little-endian two's complement of b // 8 + 1
  bytes, b being the bits of its absolute value; the name in UTF-8. Hashing is why run seeds 0 and 1
  share nothing, and any integer will do as a run seed.
- Counter, word 0 first: (block + 1, row, round, 0). A row is a direction ("weights"), an example
  ("sampling") or 0 ("order"); a round is a generation, or an epoch ("order"). Block b holds four
  64-bit words: words 4b to 4b + 3 of that row.
- Normal sample e is entry q of the table, q being the 16-bit quarter e mod 4 (lowest bits first) of
  word e div 4. Entry q is the normal inverse CDF at (q + 1/2) / 65536, divided by the standard
  deviation of all entries: mean 0, variance 1, excess kurtosis -0.0008, symmetric, ending at
  +-4.325.
- Uniform sample e is (k + 1/2) / 2**52, k being the top 52 bits of word e.

Integers and a table are exact, so the bits are the same on every processor and library version.
The table is shipped, and checked at import, because computing it would ask the local libm.

Known limits: 65,536 distinct values. Nothing lies beyond 4.325 sigma, where a normal variable is
once in 65,000 samples, and the last two entries of a tail are 0.25 apart.
"""

import hashlib
import math
import operator
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
from jaxtyping import Float32, Float64, Int64, UInt64

NOISE_VERSION = 1
"""Frozen: any change to any bit drawn here needs a new number, and the old code is kept."""

TABLE_DIGEST = "8babbcaf96568f10165a1eab530c0e5c92d04de96761b6dbb3dadfa94baba37f"
"""SHA-256 of the table as little-endian float32."""

_TABLE_PATH = Path(__file__).with_name("noise_table.npy")
_SAMPLES_PER_BLOCK = 16
_WORDS_PER_BLOCK = 4
# 65,536 samples at a time: words, indices and results (0.9 MB) fit in the cache of one core.
_CHUNK_BLOCKS = 4096
# From so many words on, letting other threads run saves more time than it costs.
_LONG = 4096
_THREAD = threading.local()


def weight_noise(
    run_seed: int, generation: int, direction: int, name: str, count: int, start: int = 0
) -> Float32[np.ndarray, " {count}"]:
    """Draw the standard normal weight noise of one tensor for one direction.

    Elements are addressed: `weight_noise(..., count, start)` equals
    `weight_noise(..., start + count)[start:]` bit for bit and costs `count` elements, so a shard
    draws only its own part.

    Args:
        run_seed: any integer, of any size and sign.
        generation: 0 for the first.
        direction: index within the generation; an antithetic pair shares one.
        name: canonical Hugging Face name of the tensor, or of a factor of it.
        count: number of elements.
        start: index of the first element in the flattened tensor.
    """
    return draw_noise_rows(run_seed, generation, (direction,), name, count, start)[0]


def draw_noise_rows(
    run_seed: int,
    generation: int,
    directions: Sequence[int],
    name: str,
    count: int,
    start: int = 0,
    out: Float32[np.ndarray, "directions {count}"] | None = None,
) -> Float32[np.ndarray, "directions {count}"]:
    """Draw one tensor's noise for many directions: row k is `weight_noise` of `directions[k]`.

    Much faster than one call per direction when tensors are small, as low-rank factors are. The
    rows are written into `out` where it is given, and returned.
    """
    _check_not_negative(generation=generation, count=count, start=start)
    stream = _Stream("weights", run_seed, generation, name)
    samples = np.empty((len(directions), count), dtype=np.float32) if out is None else out
    if samples.size == 0:
        return samples
    first, last = start // _SAMPLES_PER_BLOCK, -(-(start + count) // _SAMPLES_PER_BLOCK)
    rows_at_once = max(1, _CHUNK_BLOCKS // (last - first))
    for row in range(0, len(directions), rows_at_once):
        rows = directions[row : row + rows_at_once]
        for block in range(first, last, _CHUNK_BLOCKS):
            stop_block = min(block + _CHUNK_BLOCKS, last)
            # Little-endian by definition: the first sample of a word is its lowest 16 bits.
            words = stream.words(rows, block, stop_block).astype("<u8", copy=False)
            left = max(block * _SAMPLES_PER_BLOCK, start)
            right = min(stop_block * _SAMPLES_PER_BLOCK, start + count)
            skip = left - block * _SAMPLES_PER_BLOCK
            entries = words.view("<u2")[:, skip : skip + right - left]
            # "clip" writes without a buffer; 16 bits always index a table of 65,536 entries.
            # `take` needs a contiguous output: whole rows, or a part of one row.
            into = samples[row : row + len(rows), left - start : right - start]
            NORMAL_TABLE.take(entries, out=into, mode="clip")
    return samples


def concatenated_noise(
    run_seed: int, generation: int, directions: Sequence[int], sizes: Mapping[str, int]
) -> Float32[np.ndarray, "directions samples"]:
    """Draw many small tensors for many directions: `draw_noise_rows`, name after name.

    Faster than one call per tensor where each has a few hundred samples, as low-rank factors have.

    Args:
        run_seed: any integer.
        generation: 0 for the first.
        directions: one row each.
        sizes: number of elements by canonical name, in the order of the columns.
    """
    _check_not_negative(generation=generation, **sizes)
    if not directions:
        return np.empty((0, sum(sizes.values())), dtype=np.float32)
    blocks = [-(-size // _SAMPLES_PER_BLOCK) for size in sizes.values()]
    streams = [
        (_Stream("weights", run_seed, generation, name), count * _WORDS_PER_BLOCK)
        for name, count in zip(sizes, blocks, strict=True)
    ]
    drawn = [stream.raw(row, 0, count) for row in directions for stream, count in streams]
    words = np.concatenate(drawn).reshape(len(directions), -1).astype("<u8", copy=False)
    entries = words.view("<u2")
    # The last block of a tensor may hold more samples than the tensor has.
    if entries.shape[1] > sum(sizes.values()):
        own = [np.arange(n * _SAMPLES_PER_BLOCK) for n in blocks]
        entries = entries[
            :, np.concatenate([at < n for at, n in zip(own, sizes.values(), strict=True)])
        ]
    return NORMAL_TABLE.take(entries, mode="clip")


def sampling_uniforms(
    run_seed: int, generation: int, name: str, rows: Sequence[int], positions: int, start: int = 0
) -> Float64[np.ndarray, "rows {positions}"]:
    """Draw uniforms strictly between 0 and 1, for sampling tokens.

    The uniforms depend on the example and the position, not on the member: all members of a
    generation have the same sampling noise (common random numbers). Values are exact in float64;
    rounding them to float32 can give 1.0.

    Args:
        run_seed: any integer.
        generation: 0 for the first.
        name: of the stream, such as the task's split.
        rows: index of each example.
        positions: number of tokens.
        start: position of the first token.
    """
    _check_not_negative(generation=generation, positions=positions, start=start)
    if positions == 0:
        return np.empty((len(rows), 0), dtype=np.float64)
    stream = _Stream("sampling", run_seed, generation, name)
    first, last = start // _WORDS_PER_BLOCK, -(-(start + positions) // _WORDS_PER_BLOCK)
    skip = start - first * _WORDS_PER_BLOCK
    words = stream.words(rows, first, last)[:, skip : skip + positions]
    # 52 bits and not 53: k + 1/2 then fits a float64 exactly and the largest value stays below 1.
    return ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def epoch_permutation(run_seed: int, name: str, epoch: int, n: int) -> Int64[np.ndarray, " {n}"]:
    """Shuffle `range(n)`: the order in which an epoch visits the examples of `name`."""
    _check_not_negative(epoch=epoch, n=n)
    stream = _Stream("order", run_seed, epoch, name)
    words = stream.words((0,), 0, -(-n // _WORDS_PER_BLOCK))[0, :n]
    # A stable sort breaks the (astronomically rare) ties of 64-bit words by index.
    return np.argsort(words, kind="stable").astype(np.int64, copy=False)


class _Stream:
    """The Philox words of one (domain, run seed, generation, name)."""

    def __init__(self, domain: str, run_seed: int, generation: int, name: str) -> None:
        self._philox = _philox()
        self._counter = [0, 0, generation, 0]
        # Setting the state of one generator takes a tenth of the time of making a new one, and
        # plain integers are set twice as fast as those of an array.
        self._state = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": _key(domain, run_seed, name)},
            "buffer": (0,) * _WORDS_PER_BLOCK,
            "buffer_pos": _WORDS_PER_BLOCK,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def words(
        self, rows: Sequence[int], first_block: int, last_block: int
    ) -> UInt64[np.ndarray, "rows words"]:
        """Draw the words of blocks `first_block` to `last_block - 1` of each row."""
        count = (last_block - first_block) * _WORDS_PER_BLOCK
        if len(rows) == 1:
            return self.raw(rows[0], first_block, count)[None]
        words = np.empty((len(rows), count), dtype=np.uint64)
        for place, row in enumerate(rows):
            words[place] = self.raw(row, first_block, count)
        return words

    def raw(self, row: int, first_block: int, count: int) -> UInt64[np.ndarray, " {count}"]:
        """Draw `count` words of one row, starting with those of `first_block`."""
        if row < 0:
            raise ValueError(f"direction or example index {row} is negative; count from 0")
        # numpy adds 1 before it computes a block: hence "block + 1" in the definition.
        self._counter[0] = first_block
        self._counter[1] = row
        # To mypy, the state is a typed dict with a private name.
        self._philox.state = self._state  # type: ignore[assignment]
        if count >= _LONG and _integers_are_raw():
            return _whole_words(np.random.Generator(self._philox), count)
        raw: UInt64[np.ndarray, "words"] = self._philox.random_raw(count)
        return raw


def _whole_words(generator: np.random.Generator, count: int) -> UInt64[np.ndarray, " {count}"]:
    """Draw raw words without the interpreter lock, which `random_raw` holds."""
    return generator.integers(0, 2**64 - 1, count, dtype=np.uint64, endpoint=True)


@lru_cache(maxsize=1)
def _integers_are_raw() -> bool:
    """Check that integers of the full range are the raw words, which numpy does not promise."""
    drawn = _whole_words(np.random.Generator(np.random.Philox(key=1)), 9)
    return np.array_equal(drawn, np.random.Philox(key=1).random_raw(9))


def _philox() -> np.random.Philox:
    """Return this thread's generator: its state is set before every use, and making one is slow."""
    if not hasattr(_THREAD, "philox"):
        _THREAD.philox = np.random.Philox(key=0)
    generator: np.random.Philox = _THREAD.philox
    return generator


@lru_cache(maxsize=1 << 14)
def _key(domain: str, run_seed: int, name: str) -> tuple[int, int]:
    """Hash the name of a stream into a Philox key."""
    seed = operator.index(run_seed)
    fields = (
        b"germline noise",
        str(NOISE_VERSION).encode(),
        domain.encode(),
        seed.to_bytes(seed.bit_length() // 8 + 1, "little", signed=True),
        name.encode(),
    )
    # With lengths first, different lists of fields give different bytes.
    message = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    digest = hashlib.sha256(message).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:16], "little")


def hashed_number(name: str, bits: int) -> int:
    """Return a seed below 2^bits for other generators: neighboring names share nothing."""
    length = -(-bits // 8)
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:length], "little")
    return number >> (8 * length - bits)


def weights_key(run_seed: int, name: str) -> tuple[int, int]:
    """Return the Philox key of a tensor's weight noise, for other implementations."""
    return _key("weights", run_seed, name)


def _check_not_negative(**numbers: int) -> None:
    """Check that counts and indices are not negative: as counter words they would wrap around."""
    for name, number in numbers.items():
        if number < 0:
            raise ValueError(f"{name} is {number}; noise is addressed from 0 upwards")


def make_inverse_cdf_table() -> Float32[np.ndarray, "65536"]:
    """Compute the table from its definition, as `noise_table.npy` was made.

    `statistics.NormalDist` is Wichura's AS241 in float64, good to 1e-16, so rounding to float32
    hides nearly all differences between libms; the shipped file excludes the rest.

    `np.save(path, make_inverse_cdf_table())` writes the file again, with the same digest.
    """
    half = [NormalDist().inv_cdf((q + 0.5) / 65536) for q in range(32768)]
    deviation = math.sqrt(math.fsum(x * x for x in half) / len(half))
    lower = np.array([x / deviation for x in half]).astype("<f4")
    return np.concatenate([lower, -lower[::-1]])


def _read_table(path: Path) -> Float32[np.ndarray, "65536"]:
    """Read the shipped table and check its digest."""
    table = np.load(path, allow_pickle=False)
    found = hashlib.sha256(table.astype("<f4", copy=False).tobytes()).hexdigest()
    if found != TABLE_DIGEST:
        raise RuntimeError(
            f"the noise table {path} has SHA-256 {found}, not {TABLE_DIGEST}: the file is damaged "
            "and would change every run. Reinstall germline."
        )
    table = table.astype(np.float32, copy=False)
    table.flags.writeable = False
    return table


NORMAL_TABLE = _read_table(_TABLE_PATH)
"""The 65,536 values a sample can take, ascending."""
