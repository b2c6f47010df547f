#!/usr/bin/env python3
"""Makes deepseek-v3-fp8/: a random DeepSeek-V3 with FP8 weights, and every intermediate of one prompt, in float64 numpy.

    make_deepseek_v3_fp8.py [FOLDER]        needs numpy

As the published checkpoint: products in E4M3 with a float32 scale for each 128 x 128 block, by which codes are
multiplied; embedding, head, norms and router in bfloat16; the correction bias in float32; behind the last layer one
that predicts further ahead, which a model that generates does not read (here it holds NaN). Extents are no multiples of
128, and a block's border lies within a head of kv_b_proj. Tensors of golden.safetensors are named as in the other folders.
"""
import json
import math
import struct
import sys
from pathlib import Path

import numpy as np

VOCAB, HIDDEN, LAYERS, HEADS, NOPE, ROPE, VALUE, LATENT, QUERY_RANK = 160, 160, 2, 4, 24, 16, 24, 32, 144
INTERMEDIATE, EXPERT, EXPERTS, CHOSEN, GROUPS, GROUPS_KEPT, SCALE = 176, 40, 8, 3, 4, 2, 2.5
THETA, FACTOR, TRAINED, EPS, PROMPT, GREEDY, BLOCK = 10000.0, 4.0, 16, 1e-6, 40, 32, 128

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "torch_dtype": "bfloat16",
    "hidden_act": "silu", "attention_bias": False, "bos_token_id": 1, "eos_token_id": 2, "vocab_size": VOCAB,
    "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "moe_intermediate_size": EXPERT,
    "num_hidden_layers": LAYERS, "num_nextn_predict_layers": 1, "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS, "q_lora_rank": QUERY_RANK, "kv_lora_rank": LATENT, "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "n_routed_experts": EXPERTS, "n_shared_experts": 1,
    "num_experts_per_tok": CHOSEN, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": GROUPS,
    "topk_group": GROUPS_KEPT, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
    "routed_scaling_factor": SCALE, "rms_norm_eps": EPS, "max_position_embeddings": 512,
    "tie_word_embeddings": False, "rope_theta": THETA,
    "rope_scaling": {"type": "yarn", "factor": FACTOR, "original_max_position_embeddings": TRAINED, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [BLOCK, BLOCK]}}


# --- formats ----------------------------------------------------------------------------------------------

def e4m3_values():
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    values[(codes & 127) == 127] = np.nan
    return np.where(codes > 127, -values, values)


E4M3 = e4m3_values()


def to_bfloat16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def blocks_of(shape):
    return [(slice(r, r + BLOCK), slice(c, c + BLOCK)) for r in range(0, shape[0], BLOCK) for c in range(0, shape[1], BLOCK)]


def quantise(w):
    """(codes, scales), each block's largest value at 448."""
    codes = np.zeros(w.shape, np.uint8)
    scales = np.zeros([-(-extent // BLOCK) for extent in w.shape], np.float32)
    positive = E4M3[:127]
    for rows, cols in blocks_of(w.shape):
        block = w[rows, cols]
        scale = np.float32(np.abs(block).max() / 448)
        scales[rows.start // BLOCK, cols.start // BLOCK] = scale
        nearest = np.abs(np.abs(block)[..., None] / scale - positive).argmin(-1)
        codes[rows, cols] = nearest | np.where(block < 0, 128, 0)
    return codes, scales


def dequantise(codes, scales):
    values = E4M3[codes]
    for rows, cols in blocks_of(codes.shape):
        values[rows, cols] *= float(scales[rows.start // BLOCK, cols.start // BLOCK])
    return values


def write_safetensors(path, tensors):
    """tensors: name -> (dtype name, array)."""
    header, data = {}, b""
    order = sorted(tensors, key=lambda name: (-tensors[name][1].itemsize, name))  # so that all are aligned
    for name in order:
        kind, array = tensors[name]
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


# --- the model --------------------------------------------------------------------------------------------

def random_model(seed):
    """(weights in float64 as the formulas use them, tensors as the file holds them, prompt)."""
    rng = np.random.default_rng(seed)
    w, stored = {}, {}

    def bf16(name, values):
        stored[name] = ("BF16", to_bfloat16(values))
        w[name] = from_bfloat16(stored[name][1])

    def fp8(name, rows, cols, gain=1.4):
        codes, scales = quantise(rng.normal(0, gain / math.sqrt(cols), (rows, cols)))
        stored[f"{name}.weight"], stored[f"{name}.weight_scale_inv"] = ("F8_E4M3", codes), ("F32", scales)
        w[f"{name}.weight"] = dequantise(codes, scales)

    def gain(name, size):
        bf16(f"{name}.weight", rng.uniform(0.6, 1.4, size))

    def mlp(name, size):
        fp8(f"{name}.gate_proj", size, HIDDEN)
        fp8(f"{name}.up_proj", size, HIDDEN)
        fp8(f"{name}.down_proj", HIDDEN, size)

    bf16("model.embed_tokens.weight", rng.normal(0, 1, (VOCAB, HIDDEN)))
    bf16("lm_head.weight", rng.normal(0, 1.4 / math.sqrt(HIDDEN), (VOCAB, HIDDEN)))
    gain("model.norm", HIDDEN)
    for i in range(LAYERS):
        p = f"model.layers.{i}"
        gain(f"{p}.input_layernorm", HIDDEN)
        gain(f"{p}.post_attention_layernorm", HIDDEN)
        fp8(f"{p}.self_attn.q_a_proj", QUERY_RANK, HIDDEN)
        gain(f"{p}.self_attn.q_a_layernorm", QUERY_RANK)
        fp8(f"{p}.self_attn.q_b_proj", HEADS * (NOPE + ROPE), QUERY_RANK)
        fp8(f"{p}.self_attn.kv_a_proj_with_mqa", LATENT + ROPE, HIDDEN)
        gain(f"{p}.self_attn.kv_a_layernorm", LATENT)
        fp8(f"{p}.self_attn.kv_b_proj", HEADS * (NOPE + VALUE), LATENT)
        fp8(f"{p}.self_attn.o_proj", HIDDEN, HEADS * VALUE)
        if i < CONFIG["first_k_dense_replace"]:
            mlp(f"{p}.mlp", INTERMEDIATE)
            continue
        bf16(f"{p}.mlp.gate.weight", rng.normal(0, 1.4 / math.sqrt(HIDDEN), (EXPERTS, HIDDEN)))
        bias = rng.normal(0, 0.1, EXPERTS).astype(np.float32)
        stored[f"{p}.mlp.gate.e_score_correction_bias"] = ("F32", bias)
        w[f"{p}.mlp.gate.e_score_correction_bias"] = bias.astype(np.float64)
        mlp(f"{p}.mlp.shared_experts", EXPERT)
        for e in range(EXPERTS):
            mlp(f"{p}.mlp.experts.{e}", EXPERT)
    further = f"model.layers.{LAYERS}"
    stored[f"{further}.enorm.weight"] = ("BF16", np.full(HIDDEN, 0x7FC0, np.uint16))
    stored[f"{further}.eh_proj.weight"] = ("F8_E4M3", np.full((4, 2 * HIDDEN), 0x7F, np.uint8))
    stored[f"{further}.eh_proj.weight_scale_inv"] = ("F32", np.full((1, 3), np.nan, np.float32))
    return w, stored, rng.integers(3, VOCAB, PROMPT)


def mscale(m):
    return 0.1 * m * math.log(FACTOR) + 1


def rotate(x):
    """x [tokens, heads, ROPE], pairs (2i, 2i + 1)."""
    def pair_at(turns):
        return ROPE * math.log(TRAINED / (turns * 2 * math.pi)) / (2 * math.log(THETA))
    low, high = max(math.floor(pair_at(32)), 0), min(math.ceil(pair_at(1)), ROPE - 1)
    divided = np.clip((np.arange(ROPE // 2) - low) / max(high - low, 0.001), 0, 1)
    frequency = THETA ** (-np.arange(0, ROPE, 2) / ROPE) * (1 - divided + divided / FACTOR)
    angle = np.arange(len(x))[:, None, None] * frequency
    c, s = np.cos(angle), np.sin(angle)  # the two mscales are equal: their ratio is 1
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * c - b * s, b * c + a * s], -1).reshape(x.shape)


class Forward:
    def __init__(self, weights, ids):
        self.w, self.out = weights, {"hidden": [], "latent": [], "k_pe": [], "moe_expert_ids": [], "moe_expert_weights": []}
        self.routing_margin = np.inf
        x = self.out["embedding"] = weights["model.embed_tokens.weight"][ids]
        for i in range(LAYERS):
            p = f"model.layers.{i}"
            x = x + self.attention(f"{p}.self_attn", self.norm(f"{p}.input_layernorm", x))
            y = self.norm(f"{p}.post_attention_layernorm", x)
            x = x + (self.experts(f"{p}.mlp", y) if f"{p}.mlp.gate.weight" in weights else self.mlp(f"{p}.mlp", y))
            self.out["hidden"].append(x)
        self.out["final_norm"] = self.norm("model.norm", x)
        self.out["logits"] = self.linear("lm_head", self.out["final_norm"])

    def linear(self, name, x):
        return x @ self.w[f"{name}.weight"].T

    def norm(self, name, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * self.w[f"{name}.weight"]

    def attention(self, p, x):
        tokens = len(x)
        q = self.linear(f"{p}.q_b_proj", self.norm(f"{p}.q_a_layernorm", self.linear(f"{p}.q_a_proj", x)))
        q = q.reshape(tokens, HEADS, NOPE + ROPE)
        q = np.concatenate([q[..., :NOPE], rotate(q[..., NOPE:])], -1)
        down = self.linear(f"{p}.kv_a_proj_with_mqa", x)
        latent = self.norm(f"{p}.kv_a_layernorm", down[:, :LATENT])
        k_pe = rotate(down[:, None, LATENT:])
        self.out["latent"].append(latent)
        self.out["k_pe"].append(k_pe[:, 0])
        up = self.linear(f"{p}.kv_b_proj", latent).reshape(tokens, HEADS, NOPE + VALUE)
        k = np.concatenate([up[..., :NOPE], k_pe.repeat(HEADS, 1)], -1)
        scores = np.einsum("qhd,khd->hqk", q, k) * (NOPE + ROPE) ** -0.5 * mscale(1.0) ** 2
        scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        return self.linear(f"{p}.o_proj", np.einsum("hqk,khd->qhd", weights, up[..., NOPE:]).reshape(tokens, -1))

    def mlp(self, name, x):
        gate = self.linear(f"{name}.gate_proj", x)
        return self.linear(f"{name}.down_proj", gate / (1 + np.exp(-gate)) * self.linear(f"{name}.up_proj", x))

    def experts(self, name, x):
        score = 1 / (1 + np.exp(-self.linear(f"{name}.gate", x)))
        choice = score + self.w[f"{name}.gate.e_score_correction_bias"]
        grouped = choice.reshape(len(x), GROUPS, -1)
        ranks = np.sort(grouped, -1)[..., -2:].sum(-1)
        order = np.argsort(-ranks, -1)
        np.put_along_axis(grouped, order[:, GROUPS_KEPT:, None], -np.inf, 1)
        best = np.argsort(-choice, -1)
        ids = best[:, :CHOSEN]
        weights = np.take_along_axis(score, ids, -1)
        weights = weights / weights.sum(-1, keepdims=True) * SCALE
        for values, count in ((choice, CHOSEN), (ranks, GROUPS_KEPT)):  # how near the last in and the first out are
            falling = -np.sort(-values, -1)
            self.routing_margin = min(self.routing_margin, (falling[:, count - 1] - falling[:, count]).min())
        by_weight = np.argsort(-weights, -1)
        ids, weights = np.take_along_axis(ids, by_weight, -1), np.take_along_axis(weights, by_weight, -1)
        self.out["moe_expert_ids"].append(ids)
        self.out["moe_expert_weights"].append(weights)
        y = self.mlp(f"{name}.shared_experts", x)
        for token in range(len(x)):
            for expert, weight in zip(ids[token], weights[token]):
                y[token] += weight * self.mlp(f"{name}.experts.{expert}", x[token])
        return y


def greedy(weights, prompt):
    ids, rows, margin = list(prompt), [], np.inf
    for _ in range(GREEDY):
        run = Forward(weights, np.array(ids))
        second, first = np.sort(run.out["logits"][-1])[-2:]
        margin = min(margin, first - second, 20 * run.routing_margin)
        rows.append(run.out["logits"][-1])
        ids.append(int(rows[-1].argmax()))
    return ids[len(prompt):], np.array(rows), margin


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "deepseek-v3-fp8")
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(200):  # the first whose tokens and experts float32 cannot change
        weights, stored, prompt = random_model(seed)
        ids, logits, margin = greedy(weights, prompt)
        if margin > 5e-3:
            break
    out = Forward(weights, prompt).out
    golden = {name: ("F32", np.asarray(value, np.float32)) for name, value in out.items() if name != "moe_expert_ids"}
    golden |= {"moe_expert_ids": ("I64", np.asarray(out["moe_expert_ids"], np.int64)),
               "moe_layers": ("I64", np.arange(CONFIG["first_k_dense_replace"], LAYERS)),
               "input_ids": ("I64", prompt.astype(np.int64)), "greedy_ids": ("I64", np.array(ids, np.int64)),
               "greedy_logits": ("F32", logits.astype(np.float32))}
    write_safetensors(folder / "golden.safetensors", golden)
    write_safetensors(folder / "model.safetensors", stored)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    print(f"seed {seed}, smallest margin {margin:.4f}")


main()
