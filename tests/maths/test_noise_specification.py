"""Noise is what its specification says, bit for bit."""

import hashlib

import pytest

from germline import noise

NAME = "model.layers.0.self_attn.q_proj.weight"


def digest(array, dtype):
    return hashlib.sha256(array.astype(dtype).tobytes()).hexdigest()


def philox_block(counter, key):
    """Philox 4x64-10 in plain integers, from the paper."""
    mask = 2**64 - 1
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = 0xD2E7470EE14C6C93 * c0, 0xCA5A826395121157 * c2
        c0, c1, c2, c3 = (right >> 64) ^ c1 ^ k0, right & mask, (left >> 64) ^ c3 ^ k1, left & mask
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & mask, (k1 + 0xBB67AE8584CAA73B) & mask
    return c0, c1, c2, c3


def reference_word(domain, run_seed, name, round_, row, index):
    seed = run_seed.to_bytes(abs(run_seed).bit_length() // 8 + 1, "little", signed=True)
    fields = (b"germline noise", b"1", domain.encode(), seed, name.encode())
    message = b"".join(len(field).to_bytes(8, "little") + field for field in fields)
    hashed = hashlib.sha256(message).digest()
    key = int.from_bytes(hashed[:8], "little"), int.from_bytes(hashed[8:16], "little")
    return philox_block((index // 4 + 1, row, round_, 0), key)[index % 4]


@pytest.mark.parametrize("run_seed", [0, 1, -1, 127, 128, -128, 10**40, -(10**40)])
def test_normal_noise_is_the_documented_construction(run_seed):
    drawn = noise.weight_noise(run_seed, 3, 5, NAME, 40, start=2**36 - 7)
    expected = []
    for element in range(2**36 - 7, 2**36 + 33):
        word = reference_word("weights", run_seed, NAME, 3, 5, element // 4)
        expected.append(noise.NORMAL_TABLE[(word >> (16 * (element % 4))) & 0xFFFF])
    assert drawn.tolist() == expected


def test_uniform_noise_is_the_documented_construction():
    drawn = noise.sampling_uniforms(-7, 2, "train", [11, 4], 9, start=3)
    expected = [
        [((reference_word("sampling", -7, "train", 2, row, e) >> 12) + 0.5) / 2**52]
        for row in (11, 4)
        for e in range(3, 12)
    ]
    assert drawn.reshape(-1, 1).tolist() == expected


def test_permutation_is_the_documented_construction():
    words = [reference_word("order", 9, "train", 4, 0, index) for index in range(50)]
    assert noise.epoch_permutation(9, "train", 4, 50).tolist() == sorted(
        range(50), key=words.__getitem__
    )


def test_bits_of_version_1_never_change():
    assert noise.NOISE_VERSION == 1
    weights = noise.draw_noise_rows(0, 7, range(3), NAME, 50_000)
    assert (
        digest(weights, "<f4") == "27055785a36358642cdac4e2cce1ff8ccc0a66a781c21d1de785f2942cd2f2ab"
    )
    assert (
        digest(noise.sampling_uniforms(0, 7, "train", range(50), 30), "<f8")
        == "43c2ed5688b97e7313f69c64dc5f834d227aa2512a1fd83e83aba93ff566e377"
    )
    assert (
        digest(noise.epoch_permutation(0, "train", 7, 1000), "<i8")
        == "0bb3560a76a814e569eed4ea8cc860106bc01009b2c5f88c00ec9ef571fe671c"
    )
