"""Random blocks of each quantised type and their values by the gguf package's own dequantisation.

    pip install gguf numpy; python make_dequantize.py

writes TYPE.bytes (blocks as a GGUF file holds them) and TYPE.f32 (little-endian floats) beside this file. Scales are
drawn from the f16 numbers of magnitude 2^-14 to 1, negative ones among them; all other bits are random.
"""

import pathlib

import gguf
import numpy as np

ELEMENTS = 1024
# Byte offsets of the f16 scales in a block.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def blocks(name: str, rng: np.random.Generator) -> np.ndarray:
    quant = gguf.GGMLQuantizationType[name]
    block_elements, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    data = rng.integers(0, 256, (ELEMENTS // block_elements, block_bytes), dtype=np.uint8)
    for at in SCALES[name]:
        size = len(data)
        scale = rng.choice([-1, 1], size) * np.exp2(rng.uniform(-14, 0, size))
        data[:, at : at + 2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
    return data


def main() -> None:
    here = pathlib.Path(__file__).parent
    rng = np.random.default_rng(3)
    for name in SCALES:
        data = blocks(name, rng)
        values = gguf.dequantize(data.reshape(-1), gguf.GGMLQuantizationType[name])
        (here / f"{name}.bytes").write_bytes(data.tobytes())
        (here / f"{name}.f32").write_bytes(values.astype("<f4").tobytes())


main()
