"""Models with random weights: vllm_models.py FOLDER makes FOLDER/tiny and FOLDER/wide.

tiny: next to nothing to compute, 4 KiB of KV a block of 32 tokens; the connector's own time shows.
wide: little to compute and much KV, 4 MiB a block of 128 tokens; saving shows.
"""

import pathlib
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 1024
SHAPES = {
    "tiny": {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
             "head_dim": 32},
    "wide": {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8,
             "head_dim": 128},
}  # fmt: skip


def make(folder: pathlib.Path) -> None:
    torch.manual_seed(1)
    for name, shape in SHAPES.items():
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=64,
            max_position_embeddings=4096,
            **shape,
        )
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / name)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]))
