"""ChaCha20 against the vectors of RFC 8439, and the kernel against the plain form."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from twinproof.compute import cipher as module
from twinproof.compute.cipher import cipher_keys, cipher_words, plain_blocks
from twinproof.keys import Key

CPU = torch.device("cpu")
# RFC 8439, appendix A.1: key (its other bytes are zero), block counter, first bytes of that block.
VECTORS = [
    ({}, 0, "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"),
    ({}, 1, "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"),
    ({31: 1}, 1, "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"),
    ({1: 0xFF}, 2, "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"),
]


def _as_bytes(words: torch.Tensor) -> bytes:
    return words.cpu().contiguous().numpy().astype("<i4").tobytes()


@pytest.mark.parametrize(("key", "block", "wanted"), VECTORS)
def test_the_vectors_of_the_standard(key: dict[int, int], block: int, wanted: str) -> None:
    secret = bytes(key.get(place, 0) for place in range(32))
    words = cipher_words(cipher_keys([bytes(32), secret], CPU), 16 * (block + 1))
    assert _as_bytes(words[1, 16 * block : 16 * block + 8]).hex() == wanted


def test_a_planted_wrong_rotation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = module._rotated
    monkeypatch.setattr(module, "_rotated", lambda words, turn: right(words, 9 if turn == 8 else turn))
    assert _as_bytes(cipher_words(cipher_keys([bytes(32)], CPU), 8)).hex() != VECTORS[0][2]


def test_a_stream_begins_alike_whatever_its_length_and_company() -> None:
    secrets = [Key.from_seed(seed).secret for seed in range(3)]
    together = cipher_words(cipher_keys(secrets, CPU), 1000)
    for row, secret in enumerate(secrets):
        for count in (0, 1, 15, 16, 17, 999):
            assert torch.equal(cipher_words(cipher_keys([secret], CPU), count)[0], together[row, :count])


def test_words_look_uniform() -> None:
    words = cipher_words(cipher_keys([Key.from_seed(1).secret], CPU), 1 << 20)[0]
    for bit in range(32):
        ones = int(((words >> bit) & 1).sum())
        assert abs(ones - (1 << 19)) < 6 * 512, bit  # six standard deviations: one false alarm in 10^7 over all bits


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        cipher_keys([bytes(31)], CPU)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
@pytest.mark.parametrize("blocks", [1, 127, 128, 129, 5000])
def test_the_kernel_says_the_same(blocks: int) -> None:
    from twinproof.compute.cipher_kernel import chacha20_blocks

    secrets = [Key.from_seed(seed).secret for seed in range(3)]
    found = chacha20_blocks(cipher_keys(secrets, torch.device("cuda")), blocks)
    assert torch.equal(found.cpu(), plain_blocks(cipher_keys(secrets, CPU), blocks))
