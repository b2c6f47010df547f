"""Converts tiny Hugging Face models of ../tiny to GGUF with the `gguf` package, as converters of published models do:
rows of q and k reordered for rotation of neighbours, llama3 rope scaling as rope_freqs.weight.

    pip install gguf numpy
    python make_gguf.py
"""

import json
import math
import pathlib

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}


def read_safetensors(path):
    raw = path.read_bytes()
    header_bytes = int.from_bytes(raw[:8], "little")
    for name, entry in json.loads(raw[8:8 + header_bytes]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        assert entry["dtype"] == "BF16"
        yield name, np.frombuffer(raw[begin:end], np.uint16).reshape(entry["shape"])


def gguf_name(name):
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def reordered(name, values, config):
    """Rows (half, i) of each head become (i, half)."""
    if ".self_attn.q_proj." in name:
        heads = config["num_attention_heads"]
    elif ".self_attn.k_proj." in name:
        heads = config["num_key_value_heads"]
    else:
        return values
    rows, columns = values.shape
    return values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def llama3_frequency_factors(rope, head_dim):
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    factors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        if wavelength < high:
            factors.append(1.0)
        elif wavelength > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wavelength - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"])
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def convert(model):
    folder = HERE.parent / "tiny" / model
    config = json.loads((folder / "config.json").read_text())
    rope = config["rope_parameters"]
    writer = gguf.GGUFWriter(HERE / f"{model}-bf16.gguf", "llama")
    writer.add_name(model)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_eos_token_id(config["eos_token_id"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_frequency_factors(rope, config["head_dim"]))
    for path in sorted(folder.glob("model*.safetensors")):
        for name, values in read_safetensors(path):
            if values.ndim == 1:
                as_f32 = (values.astype(np.uint32) << 16).view(np.float32)
                writer.add_tensor(gguf_name(name), as_f32)
                continue
            bits = np.ascontiguousarray(reordered(name, values, config))
            writer.add_tensor(gguf_name(name), bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


for model in ("llama-gqa", "llama-rope-llama3"):
    convert(model)
