"""The layouts of engines of a model with these arguments, as JSON: layouts.py MODEL JSON.

Of a process of its own, since vLLM sets up its log as it makes a configuration.
"""

import json
import sys
import types

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec

from newmoon.vllm.options import Options
from newmoon.vllm.support import inspect


def layout_of(model: str, has_amx: bool = False, **arguments) -> str:
    torch.cpu._is_amx_tile_supported = lambda: has_amx
    torch.cpu._is_avx512_supported = lambda: True  # without it vLLM has no FP8 on CPU
    connector = {"kv_connector": "NewmoonConnector", "kv_role": "kv_both"}
    arguments = {"dtype": "bfloat16", "kv_transfer_config": connector} | arguments
    config = EngineArgs(model=model, **arguments).create_engine_config()
    is_fp8 = config.cache_config.cache_dtype.startswith("fp8")
    kv_type = torch.uint8 if is_fp8 else torch.bfloat16
    spec = FullAttentionSpec(block_size=128, num_kv_heads=3, head_size=64, dtype=kv_type)
    caches = types.SimpleNamespace(
        kv_cache_groups=[types.SimpleNamespace(kv_cache_spec=spec, layer_names=["layer"])],
        kv_cache_layout="LBHNC",
        hash_block_size=128,
        num_blocks=8,
    )
    return inspect(config, caches, Options()).layout


if __name__ == "__main__":
    print(json.dumps([layout_of(sys.argv[1], **asked) for asked in json.loads(sys.argv[2])]))
