"""A model whose layers are of two kinds, full attention and a sliding window, in real vLLM, told as
JSON: vllm_hybrid_flow.py MODEL [as-one-group].
"""

import sys

from vllm_flow import Flow, connector_on

WINDOW = 256  # tokens; two of a prompt's blocks
HYBRID = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": WINDOW,
}


def main(model: str, *how: str) -> None:
    # As three groups a prompt needs more blocks than there are by default.
    options = {"disable_hybrid_kv_cache_manager": True} if how else {"num_gpu_blocks_override": 60}
    flow = Flow(model, connector_on("memory"), hf_overrides=HYBRID, **options)
    flow.ask("cold")
    flow.ask("local")
    flow.push_out()
    flow.ask("external")
    flow.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
