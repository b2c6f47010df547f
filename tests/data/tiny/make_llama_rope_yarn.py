#!/usr/bin/env python3
"""Makes llama-rope-yarn/: a random Llama with YaRN positions, and every intermediate of one prompt, in float64 numpy.

    make_llama_rope_yarn.py [FOLDER]        needs numpy and safetensors

The other folders here hold outputs of the transformers library; for YaRN with a plain Llama there is none, so this
computes one from the formulas (Peng et al. 2023; transformers' modeling_rope_utils.py for the default attention factor).
Tensors are named as in the other folders. The prompt is longer than the trained context, so that all three kinds of
frequencies matter.
"""
import json
import math
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

VOCAB, HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, INTERMEDIATE = 160, 48, 3, 4, 2, 16, 96
THETA, FACTOR, TRAINED, EPS, PROMPT, GREEDY = 10000.0, 4.0, 32, 1e-5, 48, 32


def rope_tables(positions):
    def pair_at(turns):
        return DIM * math.log(TRAINED / (turns * 2 * math.pi)) / (2 * math.log(THETA))

    low, high = max(math.floor(pair_at(32)), 0), min(math.ceil(pair_at(1)), DIM - 1)
    divided = np.clip((np.arange(DIM // 2) - low) / max(high - low, 0.001), 0, 1)
    frequency = THETA ** (-np.arange(0, DIM, 2) / DIM) * (1 - divided + divided / FACTOR)
    magnitude = 0.1 * math.log(FACTOR) + 1
    angle = positions[:, None] * frequency
    return np.cos(angle) * magnitude, np.sin(angle) * magnitude


def rotate(x, cos, sin):  # x [tokens, heads, DIM], pairs (i, i + DIM / 2)
    a, b = x[..., : DIM // 2], x[..., DIM // 2 :]
    c, s = cos[:, None], sin[:, None]
    return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)


def norm(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def forward(w, ids):
    tokens = len(ids)
    cos, sin = rope_tables(np.arange(tokens))
    x = w["model.embed_tokens.weight"][ids]
    out = {"embedding": x, "hidden": [], "k": [], "v": []}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        h = norm(x, w[p + "input_layernorm.weight"])
        q = rotate((h @ w[p + "self_attn.q_proj.weight"].T).reshape(tokens, HEADS, DIM), cos, sin)
        k = rotate((h @ w[p + "self_attn.k_proj.weight"].T).reshape(tokens, KV_HEADS, DIM), cos, sin)
        v = (h @ w[p + "self_attn.v_proj.weight"].T).reshape(tokens, KV_HEADS, DIM)
        group = HEADS // KV_HEADS
        scores = np.einsum("qhd,khd->hqk", q, k.repeat(group, 1)) / math.sqrt(DIM)
        scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        attended = np.einsum("hqk,khd->qhd", weights, v.repeat(group, 1)).reshape(tokens, -1)
        x = x + attended @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, w[p + "post_attention_layernorm.weight"])
        gate = h @ w[p + "mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
        out["hidden"].append(x)
        out["k"].append(k.transpose(1, 0, 2))
        out["v"].append(v.transpose(1, 0, 2))
    out["final_norm"] = norm(x, w["model.norm.weight"])
    out["logits"] = out["final_norm"] @ w["lm_head.weight"].T
    return {name: np.asarray(value) for name, value in out.items()}


def random_weights(seed):
    rng = np.random.default_rng(seed)

    def matrix(rows, cols):
        return rng.normal(0, 1.4 / math.sqrt(cols), (rows, cols)).astype(np.float32)

    def gain():
        return rng.uniform(0.6, 1.4, HIDDEN).astype(np.float32)

    w = {"model.embed_tokens.weight": rng.normal(0, 1, (VOCAB, HIDDEN)).astype(np.float32), "model.norm.weight": gain(),
         "lm_head.weight": matrix(VOCAB, HIDDEN)}
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        w[p + "input_layernorm.weight"] = gain()
        w[p + "post_attention_layernorm.weight"] = gain()
        w[p + "self_attn.q_proj.weight"] = matrix(HEADS * DIM, HIDDEN)
        w[p + "self_attn.k_proj.weight"] = matrix(KV_HEADS * DIM, HIDDEN)
        w[p + "self_attn.v_proj.weight"] = matrix(KV_HEADS * DIM, HIDDEN)
        w[p + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * DIM)
        w[p + "mlp.gate_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        w[p + "mlp.up_proj.weight"] = matrix(INTERMEDIATE, HIDDEN)
        w[p + "mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
    return w, rng.integers(3, VOCAB, PROMPT)


def greedy(weights, prompt):
    """The continuation, its logits, and the smallest lead of a chosen token over the next one."""
    ids, rows, margin = list(prompt), [], np.inf
    for _ in range(GREEDY):
        logits = forward(weights, np.array(ids))["logits"][-1]
        second, first = np.sort(logits)[-2:]
        margin = min(margin, first - second)
        rows.append(logits)
        ids.append(int(logits.argmax()))
    return ids[len(prompt):], np.array(rows), margin


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "hidden_act": "silu",
    "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": DIM, "rms_norm_eps": EPS,
    "max_position_embeddings": int(TRAINED * FACTOR), "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "yarn", "rope_theta": THETA, "factor": FACTOR,
                        "original_max_position_embeddings": TRAINED}}


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "llama-rope-yarn")
    folder.mkdir(parents=True, exist_ok=True)
    for seed in range(100):  # the first whose greedy path float32 cannot leave
        weights, prompt = random_weights(seed)
        exact = {name: tensor.astype(np.float64) for name, tensor in weights.items()}
        ids, logits, margin = greedy(exact, prompt)
        if margin > 5e-3:
            break
    golden = {name: np.ascontiguousarray(value, np.float32) for name, value in forward(exact, prompt).items()}
    golden |= {"input_ids": prompt.astype(np.int64), "greedy_ids": np.array(ids, np.int64),
               "greedy_logits": logits.astype(np.float32)}
    save_file(golden, folder / "golden.safetensors")
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    print(f"seed {seed}, smallest margin {margin:.4f}")


main()
