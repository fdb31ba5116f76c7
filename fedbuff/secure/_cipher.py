"""Pads and sealed seeds: all uses of the package cryptography."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any

from .._base.files import optional
from ._messages import PROTOCOL

SEED_BYTES = 32
ZEROS = memoryview(bytes(1 << 18))  # what a cipher turns into its key stream, a piece at a time


def x25519_module() -> Any:
    return optional("cryptography.hazmat.primitives.asymmetric.x25519", "secure", "a one-time pad")


def sealing_context(session: bytes, digest: bytes, client: int, task: int, version: int, weight: float) -> bytes:
    """What a sealed seed is bound to."""
    return PROTOCOL + session + digest + struct.pack("<QQQd", client, task, version, weight)


def sealing_key(shared: bytes, ephemeral: bytes, public: bytes, context: bytes) -> Any:
    """The cipher for one seed: its key is used once, so its nonce can be zero."""
    hkdf = optional("cryptography.hazmat.primitives.kdf.hkdf", "secure", "a one-time pad")
    hashes = optional("cryptography.hazmat.primitives.hashes", "secure", "a one-time pad")
    aead = optional("cryptography.hazmat.primitives.ciphers.aead", "secure", "a one-time pad")
    key = hkdf.HKDF(algorithm=hashes.SHA256(), length=32, salt=ephemeral + public, info=context).derive(shared)
    return aead.ChaCha20Poly1305(key)


def seal(seed: bytes, public: bytes, context: bytes) -> tuple[bytes, bytes]:
    """The seed, readable for the owner of the key only: a fresh public key, and the ciphertext with its tag."""
    x25519 = x25519_module()
    private = x25519.X25519PrivateKey.generate()
    ephemeral = private.public_key().public_bytes_raw()
    shared = private.exchange(x25519.X25519PublicKey.from_public_bytes(public))
    return ephemeral, sealing_key(shared, ephemeral, public, context).encrypt(bytes(12), seed, context)


def make_key_stream(cipher: str, seed: bytes) -> Callable[[memoryview, Any], int]:
    """A function (zeros, out) that writes the next bytes of the pad. A seed is a key for one pad: its nonce is zero."""
    ciphers = optional("cryptography.hazmat.primitives.ciphers", "secure", "a one-time pad")
    if cipher == "chacha20":
        made = ciphers.Cipher(ciphers.algorithms.ChaCha20(seed, bytes(16)), mode=None)
    else:
        made = ciphers.Cipher(ciphers.algorithms.AES(seed), ciphers.modes.CTR(bytes(16)))
    encrypt: Callable[[memoryview, Any], int] = made.encryptor().update_into
    return encrypt


def pieces(n_bytes: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, n_bytes, len(ZEROS)):
        yield begin, min(begin + len(ZEROS), n_bytes)
