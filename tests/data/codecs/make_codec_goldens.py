#!/usr/bin/env python3
"""Golden bytes for Sluice's KV codecs.

Implements the byte layouts of kernels/codec/README.md with numpy, checks the
float formats against torch (and ml_dtypes where it is installed), and writes

  codecs.safetensors   every input tensor, its encoded bytes and its decoded floats
  codecs.json          one entry a case: codec, shape, plane sizes, counters
  formats.safetensors  exhaustive E4M3 decode, and encode vectors for e4m3, bf16, f16, pow2 scales
  errors.json          measured error of each codec (not exact goldens: for orientation)

Usage: make_codec_goldens.py [--out DIR] [--seed N] [--dims 64,128,96,32] [--heads 2]
"""
import argparse
import json
import os
import sys

import numpy as np
import torch
from safetensors.numpy import save_file

F32 = np.float32
TINY = F32(2.0) ** F32(-100)  # scaled codecs: rows whose largest magnitude is below this encode as zero rows,
HUGE = F32(2.0) ** F32(100)   # and rows whose largest magnitude is above this are refused like non-finite ones
QNAN32 = np.uint32(0x7FC00000)


def nan32():
    return np.array([QNAN32], np.uint32).view(F32)[0]


# ---------------------------------------------------------------- float formats, bit by bit

def e4m3_decode_table():
    """All 256 codes: s * m * 2^-9 for e = 0, else s * (1 + m/8) * 2^(e-7); 7F and FF are NaN."""
    table = np.zeros(256, F32)
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        e, m = (code >> 3) & 15, code & 7
        if (code & 0x7F) == 0x7F:
            table[code] = nan32()
        elif e == 0:
            table[code] = sign * m * 2.0 ** -9
        else:
            table[code] = sign * (1 + m / 8) * 2.0 ** (e - 7)
    return table


def round_to_format(x, mant_bits, min_exp, max_value):
    """|x| rounded to nearest even on the grid of a small float format, as float64 (exact).

    min_exp is the exponent of the smallest normal number; finite values above max_value saturate.
    """
    a = np.abs(x.astype(np.float64))
    finite = np.isfinite(a)
    safe = np.where(finite, a, 0.0)
    _, e = np.frexp(safe)                      # safe = f * 2^e, f in [.5, 1)
    e = np.maximum(e - 1, min_exp)
    step = np.ldexp(1.0, e - mant_bits)
    r = np.rint(safe / step) * step            # both steps exact in float64; rint ties to even
    return np.where(finite, np.minimum(r, max_value), a)


def e4m3_encode(x):
    """float32 -> E4M3 bytes: ties to even, saturating (448, also for infinities), NaN -> 7F."""
    x = np.asarray(x, F32)
    r = np.minimum(round_to_format(x, 3, -6, 448.0), 448.0)
    r = np.where(np.isnan(x), 0.0, r)
    _, e = np.frexp(r)
    e = e - 1
    normal = r >= 2.0 ** -6
    m = np.where(normal, np.ldexp(r, 3 - e) - 8, np.ldexp(r, 9)).astype(np.int64)
    code = np.where(normal, ((e + 7) << 3) + m, m)
    code = code | (np.signbit(x).astype(np.int64) << 7)
    return np.where(np.isnan(x), 0x7F, code).astype(np.uint8)


def bf16_encode(x):
    """float32 -> bf16 bits: ties to even, subnormals kept, finite overflow -> 7F7F, NaN -> 7FC0."""
    x = np.ascontiguousarray(x, F32)
    b = x.view(np.uint32).astype(np.uint64)
    r = ((b + 0x7FFF + ((b >> 16) & 1)) >> 16).astype(np.uint32)
    over = np.isfinite(x) & ((r & 0x7FFF) == 0x7F80)
    r = np.where(over, (r & 0x8000) | 0x7F7F, r)
    return np.where(np.isnan(x), 0x7FC0, r).astype(np.uint16)


def bf16_decode(h):
    return (h.astype(np.uint32) << 16).view(F32)


def f16_encode(x):
    """float32 -> f16 bits: ties to even, subnormals kept, finite overflow -> 7BFF, NaN -> 7E00."""
    x = np.ascontiguousarray(x, F32)
    r = round_to_format(x, 10, -14, 65504.0)
    r = np.where(np.isnan(x), 0.0, r)
    h = r.astype(np.float16).view(np.uint16)   # exact by construction
    h = h | (np.signbit(x).astype(np.uint16) << 15)
    return np.where(np.isnan(x), 0x7E00, h).astype(np.uint16)


def f16_decode(h):
    return h.view(np.float16).astype(F32)


# ---------------------------------------------------------------- rotation

def hadamard_block(d):
    return d & -d                              # largest power of two that divides d


def rotate(x):
    """Orthonormal Walsh-Hadamard (natural order) on blocks of the last axis.

    Stages h = 1, 2, 4, ... in float32, each (a + b, a - b); then one product with float32(n^-1/2).
    It is its own inverse. The order of the additions is part of the format.
    """
    shape = x.shape
    n = hadamard_block(shape[-1])
    y = np.ascontiguousarray(x, F32).reshape(-1, n).copy()
    h = 1
    with np.errstate(over="ignore", invalid="ignore"):
        while h < n:
            z = y.reshape(y.shape[0], n // (2 * h), 2, h)
            a, b = z[:, :, 0].copy(), z[:, :, 1].copy()
            z[:, :, 0], z[:, :, 1] = a + b, a - b
            y = z.reshape(y.shape[0], n)
            h *= 2
        y = y * F32(1.0 / np.sqrt(n))
    return y.reshape(shape)


# ---------------------------------------------------------------- codecs

class Encoded:
    """codes and scales as little-endian byte planes; counters as the encoder reports them."""

    def __init__(self, codes, scales, nonfinite_rows=0, saturated=0):
        self.codes, self.scales = codes, scales
        self.nonfinite_rows, self.saturated = int(nonfinite_rows), int(saturated)

    def bytes(self):
        return np.frombuffer(self.codes + self.scales, np.uint8).copy()


def le(a, dtype):
    return np.ascontiguousarray(a).astype(dtype).tobytes()


def bad_rows(x):
    return ~np.isfinite(x).all(axis=-1)


def enc_f32(x):
    return Encoded(le(x, "<f4"), b"", bad_rows(x).sum())


def dec_f32(data, shape):
    return np.frombuffer(data, "<f4").reshape(shape).astype(F32)


def enc_bf16(x):
    h = bf16_encode(x)
    sat = (np.isfinite(x) & (np.abs(x) > 3.3895313892515355e38)).sum()
    return Encoded(le(h, "<u2"), b"", bad_rows(x).sum(), sat)


def dec_bf16(data, shape):
    return bf16_decode(np.frombuffer(data, "<u2")).reshape(shape)


def enc_f16(x):
    h = f16_encode(x)
    sat = (np.isfinite(x) & (np.abs(x) > 65504)).sum()
    return Encoded(le(h, "<u2"), b"", bad_rows(x).sum(), sat)


def dec_f16(data, shape):
    return f16_decode(np.frombuffer(data, "<u2")).reshape(shape)


def refused_rows(y):
    return bad_rows(y) | (np.abs(np.where(np.isfinite(y), y, F32(0))).max(axis=-1) > HUGE)


def row_scale(y, top):
    """(scale, inverse, zero, bad) of each row; scale and inverse by float32 division."""
    bad = refused_rows(y)
    amax = np.abs(np.where(bad[..., None], F32(0), y)).max(axis=-1).astype(F32)
    zero = (amax < TINY) & ~bad
    s = np.where(zero | bad, F32(1), (amax / F32(top)).astype(F32)).astype(F32)
    inv = (F32(1) / s).astype(F32)
    return s, inv, zero, bad


def enc_fp8(x):
    s, inv, zero, bad = row_scale(x, 448)
    y = (np.where(bad[..., None], F32(0), x) * inv[..., None]).astype(F32)
    codes = np.where(zero[..., None], 0, e4m3_encode(y))
    codes = np.where(bad[..., None], 0x7F, codes)
    s = np.where(bad, nan32(), s)
    return Encoded(le(codes, "u1"), le(s, "<f4"), bad.sum())


def dec_fp8(data, shape):
    n = int(np.prod(shape))
    c = np.frombuffer(data[:n], np.uint8).reshape(shape)
    s = np.frombuffer(data[n:], "<f4").reshape(shape[:-1])
    return (e4m3_decode_table()[c] * s[..., None]).astype(F32)


def enc_int8(x, rotated=True):
    y = rotate(x) if rotated else x
    s, inv, zero, bad = row_scale(y, 127)
    q = np.rint(np.where(bad[..., None], F32(0), y) * inv[..., None])
    q = np.clip(q, -127, 127)
    q = np.where((zero | bad)[..., None], 0, q)
    s = np.where(bad, nan32(), s)
    return Encoded(le(q, "i1"), le(s, "<f4"), bad.sum())


def dec_int8(data, shape, rotated=True):
    n = int(np.prod(shape))
    q = np.frombuffer(data[:n], np.int8).reshape(shape).astype(F32)
    s = np.frombuffer(data[n:], "<f4").reshape(shape[:-1])
    y = (q * s[..., None]).astype(F32)
    return rotate(y) if rotated else y


GROUP = 32


def enc_int4(x, rotated=True):
    y = rotate(x) if rotated else x
    d = x.shape[-1]
    assert d % GROUP == 0, "int4 needs head_dim to be a multiple of 32"
    bad = refused_rows(y)
    g = np.where(bad[..., None], F32(0), y).reshape(*x.shape[:-1], d // GROUP, GROUP)
    at = np.abs(g).argmax(axis=-1)                       # first index of the largest magnitude
    m = np.take_along_axis(g, at[..., None], -1)[..., 0]
    want = (m / F32(-8)).astype(F32)
    sat = int((np.abs(want) > 65504).sum())
    d16 = f16_encode(want)
    zero = (d16 & 0x7FFF) == 0
    d16 = np.where(zero, 0x3C00, d16).astype(np.uint16)
    inv = (F32(1) / f16_decode(d16)).astype(F32)
    q = np.clip(np.rint(g * inv[..., None]), -8, 7).astype(np.int64)
    q = np.where(zero[..., None] | bad[..., None, None], 0, q) + 8
    packed = q[..., :16] | (q[..., 16:] << 4)
    d16 = np.where(bad[..., None], 0x7E00, d16)
    return Encoded(le(packed, "u1"), le(d16, "<u2"), bad.sum(), sat)


def dec_int4(data, shape, rotated=True):
    n = int(np.prod(shape)) // 2
    p = np.frombuffer(data[:n], np.uint8).reshape(*shape[:-1], shape[-1] // GROUP, 16)
    q = np.concatenate([p & 15, p >> 4], -1).astype(F32) - F32(8)
    s = f16_decode(np.frombuffer(data[n:], "<u2").copy()).reshape(q.shape[:-1])
    y = (q * s[..., None]).astype(F32).reshape(shape)
    return rotate(y) if rotated else y


TILE = 128


def pow2_scale(amax):
    """2^ceil(log2 max(amax/448, 1e-4)), from the bits: the exponent, plus one if any mantissa bit is set."""
    t = np.maximum((np.asarray(amax, F32) / F32(448)).astype(F32), F32(1e-4))
    b = t.view(np.uint32)
    e = (b >> 23).astype(np.int64) - 127 + ((b & 0x7FFFFF) != 0)
    return np.ldexp(F32(1), e).astype(F32)


def enc_mla(x, rope):
    """x [tokens, latent + rope] -> rows of latent e4m3 | f32 scale a 128-tile | rope bf16."""
    t, width = x.shape
    c = width - rope
    tiles = -(-c // TILE)
    bad = refused_rows(x)
    out = []
    for i in range(t):
        lat = np.zeros(c, F32) if bad[i] else x[i, :c]
        codes, scales = np.zeros(c, np.uint8), np.zeros(tiles, F32)
        for j in range(tiles):
            part = lat[j * TILE:(j + 1) * TILE]
            s = pow2_scale(np.abs(part).max(keepdims=True))[0]
            scales[j] = s
            codes[j * TILE:(j + 1) * TILE] = e4m3_encode((part * (F32(1) / s)).astype(F32))
        r = bf16_encode(x[i, c:])
        if bad[i]:
            codes[:], scales[:], r = 0x7F, nan32(), np.full(rope, 0x7FC0, np.uint16)
        out.append(le(codes, "u1") + le(scales, "<f4") + le(r, "<u2"))
    sat = (np.isfinite(x[:, c:]) & (np.abs(x[:, c:]) > 3.3895313892515355e38)).sum()
    return Encoded(b"".join(out), b"", bad.sum(), sat)


def dec_mla(data, tokens, latent, rope):
    tiles = -(-latent // TILE)
    row = latent + 4 * tiles + 2 * rope
    raw = np.frombuffer(data, np.uint8).reshape(tokens, row)
    out = np.zeros((tokens, latent + rope), F32)
    for i in range(tokens):
        s = np.frombuffer(raw[i, latent:latent + 4 * tiles].tobytes(), "<f4")
        v = e4m3_decode_table()[raw[i, :latent]]
        out[i, :latent] = v * np.repeat(s, TILE)[:latent]
        out[i, latent:] = bf16_decode(np.frombuffer(raw[i, latent + 4 * tiles:].tobytes(), "<u2"))
    return out


CODECS = {
    "f32": (enc_f32, dec_f32), "bf16": (enc_bf16, dec_bf16), "f16": (enc_f16, dec_f16),
    "fp8": (enc_fp8, dec_fp8), "int8": (enc_int8, dec_int8), "int4": (enc_int4, dec_int4),
}


def encoded_bytes(codec, tokens, heads, d):
    rows = tokens * heads
    return {"f32": 4 * rows * d, "bf16": 2 * rows * d, "f16": 2 * rows * d, "fp8": rows * (d + 4),
            "int8": rows * (d + 4), "int4": rows * (d // 2 + 2 * (d // GROUP))}[codec]


# ---------------------------------------------------------------- inputs

def make_inputs(rng, dims, heads):
    """name -> [tokens, kv_heads, head_dim] float32."""
    cases = {}
    for i, d in enumerate(dims):
        t = (5, 7, 3, 9)[i % 4]
        g = (heads, heads + 1, 1, 3)[i % 4]
        x = rng.standard_normal((t, g, d)).astype(F32)
        cases[f"gauss_d{d}"] = x
        y = rng.standard_normal((t, g, d)).astype(F32)
        for h in range(g):
            y[:, h, rng.choice(d, 2, replace=False)] *= F32(50)
        cases[f"outlier_d{d}"] = y
    d = dims[1 % len(dims)]
    cases["one_token"] = rng.standard_normal((1, 1, d)).astype(F32)
    z = np.zeros((3, heads, d), F32)
    z[1, :, ::2] = F32(-0.0)
    cases["zeros"] = z
    mags = [1e-45, 1e-40, 1e-38, 2.0 ** -101, 2.0 ** -100, 2.0 ** -99, 1e-20, 1e-8, 1e-6, 1e-3]
    t = np.stack([rng.uniform(-1, 1, (heads, d)) * m for m in mags]).astype(F32)
    for i, m in enumerate(mags):                        # pin the largest magnitude of each row
        t[i, :, 3] = F32(m)
    cases["tiny"] = t
    mags = [440.0, 1e3, 6.55e4, 1e5, 6e5, 1e12, 1e30, 1e36]
    h = np.stack([rng.uniform(-1, 1, (heads, d)) * m for m in mags]).astype(F32)
    for i, m in enumerate(mags):
        h[i, :, 5] = F32(m)
    cases["huge"] = h
    e = rng.standard_normal((2, heads, d)).astype(F32)
    e[0, 0, 7] = np.finfo(F32).max                      # rotation overflows: poisoned under int8 and int4
    e[0, 0, 8] = np.finfo(F32).max
    e[1, 0, 9] = -np.finfo(F32).max
    cases["float_max"] = e
    n = rng.standard_normal((6, heads, d)).astype(F32)
    n[1, 0, 0] = np.nan
    n[2, heads - 1, d - 1] = np.inf
    n[3, 0, 4] = -np.inf
    n[4, 0, 1], n[4, 0, 2] = np.inf, np.nan
    cases["nonfinite"] = n
    return cases


def tie_cases(rng, d, heads):
    """Rows whose scaled values fall exactly half way between two codes; per codec. d is a power of four, so that d^-1/2 is exact."""
    out = {}
    y = rng.integers(-253, 254, (3, heads, d)).astype(F32) / F32(2)      # k/2, |.| <= 126.5
    y[..., 0] = 127
    out["int8"] = rotate(y)
    assert np.array_equal(rotate(out["int8"]), y)
    y = rng.integers(-15, 16, (3, heads, d)).astype(F32) / F32(2)
    y[..., ::GROUP] = -8
    out["int4"] = rotate(y)
    assert np.array_equal(rotate(out["int4"]), y)
    table = e4m3_decode_table()[:0x7F].astype(np.float64)
    mid = ((table[1:] + table[:-1]) / 2).astype(F32)
    y = rng.choice(mid, (3, heads, d)) * rng.choice([-1, 1], (3, heads, d))
    y[..., 0] = 448
    out["fp8"] = y.astype(F32)
    return out


def mla_inputs(rng):
    cases = {}
    i = np.arange(512)
    lat = bf16_decode(bf16_encode((np.sin(.37 * i) * (1 + i / 64)).astype(F32)))
    rope = np.cos(.11 * np.arange(64)).astype(F32)
    cases["check7"] = (np.concatenate([lat, rope])[None].astype(F32), 64)
    cases["gauss_512_64"] = (rng.standard_normal((5, 576)).astype(F32), 64)
    x = rng.standard_normal((3, 576)).astype(F32)
    x[:, rng.choice(512, 4, replace=False)] *= F32(50)
    cases["outlier_512_64"] = (x, 64)
    x = rng.standard_normal((4, 576)).astype(F32)
    x[0] = 0
    x[1] *= F32(1e-6)
    x[2] *= F32(1e6)
    x[3, 100] = np.nan
    cases["edge_512_64"] = (x, 64)
    x = np.clip(rng.standard_normal((3, 576)), -1, 1).astype(F32)
    top = F32(1.75)                                     # 448 * 2^-8: amax/448 exactly a power of two, just above it, just below it
    x[:, :512:128] = np.array([top, np.nextafter(top, F32(2)), np.nextafter(top, F32(0))])[:, None]
    x[2, 256] = -2 * top
    cases["pow2_edge_512_64"] = (x, 64)
    cases["small_64_16"] = (rng.standard_normal((7, 80)).astype(F32), 16)               # one short tile
    cases["ragged_192_32"] = (rng.standard_normal((3, 224)).astype(F32), 32)            # a full tile and a half one
    return cases


# ---------------------------------------------------------------- format vectors and checks

def format_vectors(rng):
    v = {"e4m3_decode/value": e4m3_decode_table()}
    grid = np.concatenate([e4m3_decode_table()[:0x7F], [F32(480)]]).astype(np.float64)
    mid = ((grid[1:] + grid[:-1]) / 2).astype(F32)
    near = np.concatenate([grid.astype(F32), mid, np.nextafter(mid, F32(np.inf)), np.nextafter(mid, F32(0))])
    special = np.array([2.0 ** -10 * (1 + 1e-6), 1.5 * 2.0 ** -9, 7.5 * 2.0 ** -9, 1.0625, 1.1875, 17, 19, 21, 248, 264,
                        272, 304, 431.9, 432, 449, 464, 465, 480, 1e5, 3.4e38, np.inf, 1e-40, 0.1, 1 / 3, np.pi], F32)
    rand = (rng.standard_normal(2048) * np.exp2(rng.uniform(-12, 10, 2048))).astype(F32)
    x = np.concatenate([near, special, rand]).astype(F32)
    x = np.concatenate([x, -x, np.array([np.nan], F32)])
    v["e4m3_encode/x"], v["e4m3_encode/code"] = x, e4m3_encode(x)

    for name, enc, bits in (("bf16", bf16_encode, 8), ("f16", f16_encode, 11)):
        base = (rng.standard_normal(1024) * np.exp2(rng.uniform(-30, 18, 1024))).astype(F32)
        dec = bf16_decode if name == "bf16" else f16_decode
        lo = dec(enc(np.abs(base)))
        hi = dec((enc(np.abs(base)) + 1).astype(np.uint16))
        ok = np.isfinite(hi)
        tie = ((lo[ok].astype(np.float64) + hi[ok]) / 2).astype(F32)
        edge = np.array([0, 65503.9, 65504, 65519.9, 65520, 7e4, 3.3895e38, 3.39e38, 3.4028235e38, 1e-45, 1e-40,
                         1.1754944e-38, 5.9604645e-8, 2.9802322e-8, 2.98023224e-8 * 1.001, 6.1e-5, np.inf], F32)
        x = np.concatenate([base, tie, np.nextafter(tie, F32(np.inf)), np.nextafter(tie, F32(0)), edge])
        x = np.concatenate([x, -x, np.array([np.nan], F32)]).astype(F32)
        v[f"{name}_encode/x"], v[f"{name}_encode/code"] = x, enc(x)

    amax = np.concatenate([np.exp2(np.arange(-16, 12)) * 448, np.nextafter((np.exp2(np.arange(-16, 12)) * 448).astype(F32), F32(1e9)),
                           np.nextafter((np.exp2(np.arange(-16, 12)) * 448).astype(F32), F32(0)),
                           np.abs(rng.standard_normal(64)) * 10, [0, 0.0448, 0.0449, 1e-30]]).astype(F32)
    v["pow2_scale/amax"], v["pow2_scale/scale"] = amax, pow2_scale(amax)

    h = np.concatenate([np.arange(1, 9, dtype=F32)])
    v["hadamard/x8"], v["hadamard/y8"] = h, rotate(h[None])[0]
    for d in (32, 64, 80, 96, 128):
        x = rng.standard_normal((3, d)).astype(F32)
        v[f"hadamard/x{d}"], v[f"hadamard/y{d}"] = x, rotate(x)
    return v


def self_check(v):
    """Independent sources: torch for all formats, ml_dtypes for E4M3 where present, the Hadamard matrix in float64."""
    torch_table = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(torch_table, v["e4m3_decode/value"], equal_nan=True)
    x = v["e4m3_encode/x"]
    clamped = torch.from_numpy(np.where(np.isnan(x), x, np.clip(x, -448, 448)))
    assert np.array_equal(clamped.to(torch.float8_e4m3fn).view(torch.uint8).numpy(), v["e4m3_encode/code"])
    sources = ["torch"]
    try:
        import ml_dtypes
        got = np.where(np.isnan(x), x, np.clip(x, F32(-448), F32(448))).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        assert np.array_equal(got, v["e4m3_encode/code"])
        sources.append("ml_dtypes")
    except ImportError:
        pass
    every = np.arange(256, dtype=np.uint8)
    finite = (every & 0x7F) != 0x7F
    assert np.array_equal(e4m3_encode(v["e4m3_decode/value"])[finite], every[finite])     # round trip of all codes
    for name, td, top in (("bf16", torch.bfloat16, 3.3895313892515355e38), ("f16", torch.float16, 65504.0)):
        x = v[f"{name}_encode/x"]
        c = np.where(np.isfinite(x), np.clip(x, F32(-top), F32(top)), x).astype(F32)
        got = torch.from_numpy(c).to(td).view(torch.int16).numpy().view(np.uint16)
        fine = ~np.isnan(x)
        assert np.array_equal(got[fine], v[f"{name}_encode/code"][fine]), name
    # known codes
    want = {2.0 ** -10: 0x00, 1.5 * 2.0 ** -9: 0x02, 2.5 * 2.0 ** -9: 0x02, 7.5 * 2.0 ** -9: 0x08, 1.0625: 0x38, 1.1875: 0x3A, 17: 0x58,
            19: 0x5A, 21: 0x5A, 248: 0x78, 264: 0x78, 272: 0x78, 304: 0x7A, 431.9: 0x7D, 432: 0x7E, 449: 0x7E, 1e5: 0x7E,
            np.inf: 0x7E, -np.inf: 0xFE, -0.0: 0x80, -0.1: 0x9D, 1 / 3: 0x2B, np.pi: 0x45}
    for value, code in want.items():
        assert e4m3_encode(np.array([value], F32))[0] == code, (value, code)
    assert e4m3_encode(np.array([2.0 ** -10 * (1 + 1e-6)], F32))[0] == 1
    # the matrix itself
    h = np.array([[1.0]])
    while h.shape[0] < 128:
        h = np.block([[h, h], [h, -h]])
    for d in (32, 64, 128):
        x = v[f"hadamard/x{d}"].astype(np.float64)
        assert np.abs(x @ h[:d, :d] / np.sqrt(d) - v[f"hadamard/y{d}"]).max() < 2e-6
    assert np.allclose(v["hadamard/y8"], [12.7279221, -1.4142136, -2.8284271, 0, -5.6568542, 0, 0, 0], atol=1e-6)
    # the known 656-byte row
    import zlib
    row, rope = mla_inputs(np.random.default_rng(0))["check7"]
    data = enc_mla(row, rope).codes
    assert len(data) == 656 and zlib.crc32(data) == 0x2EB98E31, hex(zlib.crc32(data))
    # no rotation: integers of q8_0 and, up to exact ties, q4_0
    x = (((37 * np.arange(32)) % 64 - 31.5) / 10).astype(F32)[None, None]
    q8 = np.frombuffer(enc_int8(x, rotated=False).codes, np.int8)
    assert list(q8[:8]) == [-127, 22, -87, 62, -46, 103, -6, -115]
    e4 = enc_int4(x, rotated=False)
    assert e4.scales == bytes([0x4D, 0x36]), e4.scales
    p = np.frombuffer(e4.codes, np.uint8)
    q4 = np.concatenate([p & 15, p >> 4])
    ref = [0, 9, 3, 12, 5, 14, 8, 1, 10, 3, 13, 6, 15, 8, 2, 11, 4, 13, 7, 15, 9, 2, 12, 5, 14, 7, 1, 10, 3, 12, 6, 15]
    return {"sources": sources, "check11_int4_differences": int((q4 != np.array(ref)).sum())}


# ---------------------------------------------------------------- error table

def attention(q, k, v, causal_len=None):
    """float64 softmax attention: q [nq, d], k, v [t, d]."""
    s = q @ k.T / np.sqrt(q.shape[-1])
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return s, p @ v


def error_table(rng):
    t, g, d, nq = 512, 4, 128, 64
    rows = []
    for kind in ("gauss", "outliers"):
        k = rng.standard_normal((t, g, d)).astype(F32)
        v = rng.standard_normal((t, g, d)).astype(F32)
        if kind == "outliers":                     # two channels of K and one of V at 50 x, per head
            for h in range(g):
                k[:, h, rng.choice(d, 2, replace=False)] *= F32(50)
                v[:, h, rng.choice(d, 1)] *= F32(50)
        q = rng.standard_normal((g, nq, d))
        if kind == "outliers":                     # trained queries are small where keys are large: keep logits sane
            for h in range(g):
                q[h][:, np.abs(k[:, h]).max(0) > 20] /= 50
        quiet = np.array([np.abs(k[:, h]).max(0) < 20 for h in range(g)])
        variants = [(c, e, f) for c, (e, f) in CODECS.items()]
        variants += [("int8 without rotation", lambda x: enc_int8(x, False), lambda b, s: dec_int8(b, s, False)),
                     ("int4 without rotation", lambda x: enc_int4(x, False), lambda b, s: dec_int4(b, s, False)),
                     ("fp8 with rotation", lambda x: enc_fp8(rotate(x)), lambda b, s: rotate(dec_fp8(b, s)))]
        for name, enc, dec in variants:
            kd = dec(enc(k).bytes().tobytes(), k.shape).astype(np.float64)
            vd = dec(enc(v).bytes().tobytes(), v.shape).astype(np.float64)
            rel = lambda a, b: float(np.sqrt(((a - b) ** 2).sum() / (b ** 2).sum()))
            ko = np.concatenate([(kd[:, h, quiet[h]] - k[:, h, quiet[h]]).ravel() for h in range(g)])
            kr = np.concatenate([k[:, h, quiet[h]].ravel() for h in range(g)]).astype(np.float64)
            outs, refs, ds = [], [], []
            for h in range(g):
                s0, o0 = attention(q[h], k[:, h].astype(np.float64), v[:, h].astype(np.float64))
                s1, o1 = attention(q[h], kd[:, h], vd[:, h])
                outs.append(o1), refs.append(o0), ds.append((s1 - s0).ravel())
            rows.append({"input": kind, "codec": name, "bits_per_element": round(8 * enc(k).bytes().size / k.size, 3),
                         "k_rel_rms": rel(kd, k), "v_rel_rms": rel(vd, v), "k_rel_rms_quiet_channels": float(np.sqrt((ko ** 2).sum() / (kr ** 2).sum())),
                         "logit_rms": float(np.sqrt(np.mean(np.concatenate(ds) ** 2))),
                         "attention_rel_rms": rel(np.stack(outs), np.stack(refs))})
    return {"tokens": t, "kv_heads": g, "head_dim": d, "queries_per_head": nq, "rows": rows}


# ---------------------------------------------------------------- main

def write(tensors, folder, name):
    path = os.path.join(folder, name)
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, path)
    os.chmod(path, 0o644)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default=os.path.dirname(os.path.abspath(__file__)))
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--dims", default="64,128,96,32")
    ap.add_argument("--heads", type=int, default=2)
    args = ap.parse_args()
    rng = np.random.default_rng(args.seed)
    dims = [int(d) for d in args.dims.split(",")]

    vectors = format_vectors(rng)
    checks = self_check(vectors)
    write(vectors, args.out, "formats.safetensors")

    tensors, cases = {}, []
    inputs = make_inputs(rng, dims, args.heads)
    for codec, x in tie_cases(rng, next((d for d in dims if d in (16, 64, 256)), 64), args.heads).items():
        inputs[f"ties_{codec}"] = x
    for name, x in inputs.items():
        tensors[f"input/{name}"] = x
        for codec, (enc, dec) in CODECS.items():
            if name.startswith("ties_") and name != f"ties_{codec}":
                continue
            if codec == "int4" and x.shape[-1] % GROUP:
                continue
            with np.errstate(all="ignore"):
                e = enc(x)
                data = e.bytes()
                decoded = dec(data.tobytes(), x.shape)
            assert data.size == encoded_bytes(codec, *x.shape), (name, codec)
            key = f"{codec}/{name}"
            tensors[f"encoded/{key}"] = data
            if codec != "f32":
                tensors[f"decoded/{key}"] = decoded
            cases.append({"codec": codec, "input": name, "shape": list(x.shape), "bytes": int(data.size),
                          "codes_bytes": len(e.codes), "scales_bytes": len(e.scales),
                          "nonfinite_rows": e.nonfinite_rows, "saturated": e.saturated})
    for name, (x, rope) in mla_inputs(rng).items():
        e = enc_mla(x, rope)
        data = e.bytes()
        tensors[f"input/mla_{name}"] = x
        tensors[f"encoded/mla-fp8/mla_{name}"] = data
        tensors[f"decoded/mla-fp8/mla_{name}"] = dec_mla(data.tobytes(), x.shape[0], x.shape[1] - rope, rope)
        cases.append({"codec": "mla-fp8", "input": f"mla_{name}", "shape": list(x.shape), "latent": x.shape[1] - rope, "rope": rope,
                      "bytes": int(data.size), "nonfinite_rows": e.nonfinite_rows, "saturated": e.saturated})
    write(tensors, args.out, "codecs.safetensors")
    with open(os.path.join(args.out, "codecs.json"), "w") as f:
        json.dump({"seed": args.seed, "dims": dims, "heads": args.heads, "self_check": checks, "cases": cases}, f, indent=1)
    table = error_table(rng)
    with open(os.path.join(args.out, "errors.json"), "w") as f:
        json.dump(table, f, indent=1)
    for r in table["rows"]:
        print("{input:9s} {codec:22s} {bits_per_element:6.2f} b  K {k_rel_rms:.5f} quiet {k_rel_rms_quiet_channels:.5f} "
              "V {v_rel_rms:.5f} logit {logit_rms:.5f} attn {attention_rel_rms:.5f}".format(**r))
    print(len(cases), "cases;", checks)


if __name__ == "__main__":
    sys.exit(main())
