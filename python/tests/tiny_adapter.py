"""A LoRA adapter for the tiny model: random weights by seed, in the form of PEFT."""

import json
import pathlib

import torch
from safetensors.torch import save_file

RANK, HIDDEN, LAYERS = 8, 128, 3


def write_adapter(folder: pathlib.Path, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for name in ("q_proj", "v_proj"):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("lora_A", (RANK, HIDDEN)), ("lora_B", (HIDDEN, RANK))):
                weights[f"{prefix}.{part}.weight"] = torch.randn(shape, generator=generator)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
