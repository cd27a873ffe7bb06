#!/usr/bin/env python3
"""Writes quant.bin: what GGML's reference quantizers and dequantizers make of known rows.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install numpy pywhispercpp==1.5.1
    /tmp/venv/bin/python test-data/golden/quant.py

The wheel carries libggml-base, whose exported `quantize_row_*_ref`, `ggml_quantize_chunk` and
`dequantize_row_*` are called here through ctypes. Rows come from a linear congruential generator that the Rust test
(crates/quant/tests/golden.rs) repeats, so the file holds results only.

Layout, per format in the order of FORMATS: for each row of `rows()` the packed bytes, then the
64-bit FNV-1a hash of the dequantized f32 bytes; after the rows, the hash of the dequantized
`random_blocks`. The same follows for CODE_BOOKS, packed with an importance matrix: the first rows
only, and more random blocks, so that most entries of the code books occur. Little-endian
throughout.
"""

import ctypes
import pathlib
import sys

import numpy as np

K = 512
# name, symbol, block length, block bytes, offsets of f16 fields
FORMATS = [
    ("q4_0", "q4_0", 32, 18, [0]),
    ("q4_1", "q4_1", 32, 20, [0, 2]),
    ("q5_0", "q5_0", 32, 22, [0]),
    ("q5_1", "q5_1", 32, 24, [0, 2]),
    ("q8_0", "q8_0", 32, 34, [0]),
    ("q8_1", "q8_1", 32, 36, [0, 2]),
    ("q2_k", "q2_K", 256, 84, [80, 82]),
    ("q3_k", "q3_K", 256, 110, [108]),
    ("q4_k", "q4_K", 256, 144, [0, 2]),
    ("q5_k", "q5_K", 256, 176, [0, 2]),
    ("q6_k", "q6_K", 256, 210, [208]),
    ("q8_k", "q8_K", 256, 292, []),
    ("iq4_nl", "iq4_nl", 32, 18, [0]),
    ("iq4_xs", "iq4_xs", 256, 136, [0]),
    ("mxfp4", "mxfp4", 32, 17, []),
    ("nvfp4", "nvfp4", 64, 36, []),
    ("tq1_0", "tq1_0", 256, 54, [52]),
    ("tq2_0", "tq2_0", 256, 66, [64]),
]
# GGML's ids of the types that are packed by `ggml_quantize_chunk`, which `llama-quantize` calls:
# for the others without a `_ref` of their own it is the same.
CHUNK_IDS = {
    "iq2_xxs": 16, "iq2_xs": 17, "iq3_xxs": 18, "iq1_s": 19, "iq4_nl": 20, "iq3_s": 21, "iq2_s": 22,
    "iq4_xs": 23, "iq1_m": 29, "tq1_0": 34, "tq2_0": 35, "mxfp4": 39, "nvfp4": 40,
}  # fmt: skip
CODE_BOOKS = [
    ("iq1_s", "iq1_s", 256, 50, [0]),
    ("iq1_m", "iq1_m", 256, 56, [54]),
    ("iq2_xxs", "iq2_xxs", 256, 66, [0]),
    ("iq2_xs", "iq2_xs", 256, 74, [0]),
    ("iq2_s", "iq2_s", 256, 82, [0]),
    ("iq3_xxs", "iq3_xxs", 256, 98, [0]),
    ("iq3_s", "iq3_s", 256, 110, [0]),
]
CODE_BOOK_ROWS = 3
CODE_BOOK_BLOCKS = 256


class Lcg:
    """x' = 1664525 x + 1013904223 mod 2^32; the upper 24 bits are used."""

    def __init__(self, seed):
        self.state = seed

    def next24(self):
        self.state = (self.state * 1664525 + 1013904223) & 0xFFFFFFFF
        return self.state >> 8

    def unit(self, n):
        """f32 in [-1, 1), exactly representable."""
        return np.array([self.next24() for _ in range(n)], np.float32) / np.float32(2**23) - np.float32(1)


def rows():
    """Rows of K values. Every operation is exact in f32 or a single rounded one."""
    g = Lcg(1)
    f = np.float32
    uniform = g.unit(K)
    a, b, c, d = (g.unit(K) for _ in range(4))
    bell = (((a + b) + c) + d) * f(0.5)
    outliers = g.unit(K) * f(2.0**-6)
    outliers[::37] *= f(2.0**9)
    patches = g.unit(K)
    patches[32:64] = 0
    patches[80:96] = f(0.25)
    patches[128:192] *= f(2.0**-12)
    patches[300:420] = 0
    patches[310] = f(-3)
    return [
        uniform,
        bell,
        outliers,
        patches,
        np.zeros(K, f),
        np.full(K, f(0.375)),
        np.full(K, f(-1.5)),
        g.unit(K) * f(2.0**-20),  # scales are f16 subnormals or zero
        g.unit(K) * f(2.0**-130),  # f32 subnormals
        np.abs(g.unit(K)) + f(0.5),
        -np.abs(g.unit(K)),
        g.unit(K) * f(1000),
    ]


def random_blocks(seed, n_blocks, block_bytes, halves):
    """Any bytes, but with finite f16 fields (the exponent's top bit is cleared)."""
    g = Lcg(seed)
    raw = np.array([g.next24() >> 16 for _ in range(n_blocks * block_bytes)], np.uint8)
    raw = raw.reshape(n_blocks, block_bytes)
    for offset in halves:
        raw[:, offset + 1] &= 0xBF
    return raw


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return h.to_bytes(8, "little")


def main():
    site = next(pathlib.Path(p) for p in sys.path if list(pathlib.Path(p).glob("libggml-base.so")))
    base = ctypes.CDLL(str(site / "libggml-base.so"))

    base.ggml_quantize_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    base.ggml_quantize_chunk.restype = ctypes.c_size_t

    def quantize(symbol, row, n_bytes, importance=None):
        out = np.zeros(n_bytes, np.uint8)
        row = np.ascontiguousarray(row, np.float32)
        if symbol in CHUNK_IDS:
            weights = None if importance is None else importance.ctypes.data_as(ctypes.c_void_p)
            n = base.ggml_quantize_chunk(
                CHUNK_IDS[symbol], row.ctypes.data, out.ctypes.data, 0, 1, row.size, weights
            )
            assert n == n_bytes
            return out
        getattr(base, f"quantize_row_{symbol}_ref")(
            row.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(row.size)
        )
        return out

    def dequantize(symbol, raw, n):
        if symbol == "q8_1":  # GGML has no such function: the format is for activations only
            blocks = raw.reshape(-1, 36)
            d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
            return (blocks[:, 4:].view(np.int8).astype(np.float32) * d).reshape(-1)
        out = np.zeros(n, np.float32)
        raw = np.ascontiguousarray(raw)
        getattr(base, f"dequantize_row_{symbol}")(
            raw.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(n)
        )
        return out

    result = bytearray()
    for i, (_, symbol, block_len, block_bytes, halves) in enumerate(FORMATS):
        for row in rows():
            packed = quantize(symbol, row, K // block_len * block_bytes)
            result += packed.tobytes() + fnv1a(dequantize(symbol, packed, K).tobytes())
        n_blocks = 2048 // block_len
        raw = random_blocks(100 + i, n_blocks, block_bytes, halves)
        if symbol == "q8_K":  # the f32 scale, kept finite
            raw[:, 3] &= 0xBF
        result += fnv1a(dequantize(symbol, raw, 2048).tobytes())
    importance = np.abs(Lcg(7).unit(K)) + np.float32(0.5)
    for i, (_, symbol, block_len, block_bytes, halves) in enumerate(CODE_BOOKS):
        for row in rows()[:CODE_BOOK_ROWS]:
            packed = quantize(symbol, row, K // block_len * block_bytes, importance)
            result += packed.tobytes() + fnv1a(dequantize(symbol, packed, K).tobytes())
        raw = random_blocks(200 + i, CODE_BOOK_BLOCKS, block_bytes, halves)
        n = CODE_BOOK_BLOCKS * block_len
        result += fnv1a(dequantize(symbol, raw, n).tobytes())
    path = pathlib.Path(__file__).with_name("quant.bin")
    path.write_bytes(result)
    print(f"{path}: {len(result)} bytes")


if __name__ == "__main__":
    main()
