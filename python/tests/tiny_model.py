"""A random Llama with two heads, of some MB: vLLM starts faster with it, and it can be split in two.

tiny_model.py OUT TOKENIZER: the same weights every time, in the form of Hugging Face, with the
tokenizer of another model.
"""

import pathlib
import shutil
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def make(out: pathlib.Path, tokenizer: pathlib.Path) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        # So large that what stands in the context decides what comes next.
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, out)


if __name__ == "__main__":
    make(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
