"""Makes the model files that the demo and the tests need from the one that is fetched.

  other.gguf    the same architecture and types, really different weights: every Q4_1 block
                of 32 weights is scaled by its own factor near 1. Still speaks, says other things.
  adapter.gguf  a LoRA adapter, rank 8, on attn_q and attn_v of every layer.
  f16.gguf      the weights dequantised to F16.

Deterministic: numpy's RandomState is frozen (NEP 19) and nothing here calls libm, so the files
have fixed checksums, which `./dev setup` checks. Needs numpy and llama.cpp's gguf-py on PYTHONPATH.

Usage: derive_models.py BASE.gguf OUTPUT_DIRECTORY
"""

import pathlib
import shutil
import sys

import gguf
import numpy as np

SEED = 2024
BLOCK_SPREAD = 0.10  # standard deviation of a block's factor
LORA_RANK = 8
LORA_ALPHA = 16.0
LORA_STRENGTH = 0.004  # standard deviation of B's entries; A's is 1

Q4_1_BLOCK_BYTES = 20  # f16 scale, f16 minimum, 32 4-bit weights
TYPES_KEPT_IN_F16 = (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)


def noise(random, shape):
    """Uniform float32, mean 0, standard deviation 1."""
    return (np.sqrt(12) * (random.random_sample(shape) - 0.5)).astype(np.float32)


def scale_blocks(rows, random):
    """Scales each Q4_1 block of `rows` (bytes, in place) by a factor near 1."""
    blocks = rows.reshape(-1, Q4_1_BLOCK_BYTES)
    scale_and_minimum = blocks[:, :4].copy().view("<f2").astype(np.float32)
    factors = np.float32(1) + np.float32(BLOCK_SPREAD) * noise(random, len(blocks))
    scale_and_minimum *= factors[:, None]
    blocks[:, :4] = scale_and_minimum.astype("<f2").view(np.uint8)


def write_other(base, base_path, path):
    shutil.copyfile(base_path, path)
    random = np.random.RandomState(SEED)
    file = np.memmap(path, dtype=np.uint8, mode="r+")
    for tensor in base.tensors:
        if tensor.tensor_type == gguf.GGMLQuantizationType.Q4_1:
            begin = int(tensor.data_offset)
            scale_blocks(file[begin : begin + int(tensor.n_bytes)], random)
    file.flush()


def write_adapter(base, path):
    random = np.random.RandomState(SEED + 1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", LORA_ALPHA)
    for tensor in base.tensors:
        if not tensor.name.endswith((".attn_q.weight", ".attn_v.weight")):
            continue
        inputs, outputs = (int(n) for n in tensor.shape)
        a = noise(random, (LORA_RANK, inputs))
        b = np.float32(LORA_STRENGTH) * noise(random, (outputs, LORA_RANK))
        writer.add_tensor(tensor.name + ".lora_a", a)
        writer.add_tensor(tensor.name + ".lora_b", b)
    finish(writer)


def write_f16(base, path):
    writer = gguf.GGUFWriter(path, "llama")
    for field in base.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue  # the writer adds these
        value = field.contents()
        if field.name == "general.file_type":
            value = int(gguf.LlamaFileType.MOSTLY_F16)
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=element)
    for tensor in base.tensors:
        if tensor.tensor_type in TYPES_KEPT_IN_F16:
            writer.add_tensor(tensor.name, tensor.data)
        else:
            weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, weights.astype(np.float16))
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: derive_models.py BASE.gguf OUTPUT_DIRECTORY")
    base_path, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    base = gguf.GGUFReader(base_path)
    write_other(base, base_path, output / "other.gguf")
    write_adapter(base, output / "adapter.gguf")
    write_f16(base, output / "f16.gguf")


if __name__ == "__main__":
    main()
