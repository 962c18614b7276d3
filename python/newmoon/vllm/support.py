"""What of vLLM this connector works with. Everything else is refused at the start, in one line."""

import dataclasses
import hashlib
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

import vllm
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
from vllm.v1.kv_cache_interface import FullAttentionSpec

from newmoon import _core
from newmoon._core import Error
from newmoon.vllm.options import Options

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

TESTED_VERSION = "0.32"


@dataclasses.dataclass(frozen=True)
class Setup:
    """What both roles must agree on. They derive it, each in its process, from vLLM's own
    configuration."""

    model: str
    layout: str  # part of the scope: KV of another layout is never found
    block_size: int
    block_count: int
    rank_count: int
    endpoints: list[str]  # of the ranks' sockets, in rank order
    engine_id: str


def check_version(any_version: bool) -> None:
    version = vllm.__version__
    if version.split(".")[:2] != TESTED_VERSION.split(".") and not any_version:
        raise RuntimeError(
            f"newmoon was tested with vLLM {TESTED_VERSION} and this is {version}; install that, or "
            'set "any_vllm_version": true in kv_connector_extra_config to run untested'
        )


def check_role(kv_role: str) -> None:
    """Nothing here is for disaggregated prefill."""
    if kv_role != "kv_both":
        raise ValueError(
            f"newmoon: 'kv_role' must be \"kv_both\", and \"{kv_role}\" was given: each engine loads"
            " and saves; what a request may do of it, its kv_transfer_params say (docs/vllm.md)"
        )


def check_store(options: Options) -> None:
    """Of a store that is only away, SchedulerSide and each rank's store tell."""
    try:
        _core.check_store(options.store)
    except Error as error:
        why = str(error).removeprefix(f"{error.code}: ")
        raise ValueError(f"newmoon: 'store' in kv_connector_extra_config: {why}") from None


def refusal(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> str | None:
    """Why this configuration is not supported, or None."""
    parallel = vllm_config.parallel_config
    for name, size in (
        ("pipeline parallelism", parallel.pipeline_parallel_size),
        ("decode context parallelism", parallel.decode_context_parallel_size),
        ("prefill context parallelism", parallel.prefill_context_parallel_size),
        ("several nodes", parallel.nnodes),
    ):
        if size > 1:
            return f"{name} is not supported"
    if vllm_config.speculative_config is not None:
        return "speculative decoding is not supported"
    multimodal = vllm_config.model_config.multimodal_config
    if multimodal is not None and not multimodal.language_model_only:
        return (
            "multimodal input is not supported, as vLLM keeps what its encoder made of it across an"
            " update of weights; text alone is, with --language-model-only"
        )
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return (
            f"the model has {len(groups)} KV cache groups, and only one is supported; models with"
            " sliding windows have one with --disable-hybrid-kv-cache-manager"
        )
    spec = groups[0].kv_cache_spec
    if type(spec) is not FullAttentionSpec:
        return f"KV of kind {type(spec).__name__} is not supported, only full attention"
    if kv_cache_config.hash_block_size not in (None, spec.block_size):
        return "hashes of parts of a block are not supported (prefix_match_unit)"
    return None


def inspect(
    vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig", options: Options
) -> Setup:
    """Raises ValueError where refusal() has a reason."""
    reason = refusal(vllm_config, kv_cache_config)
    if reason is not None:
        raise ValueError(f"newmoon: {reason}")
    if options.identity == "digest" and vllm_config.model_config.quantization is not None:
        raise ValueError("newmoon: identity 'digest' is not supported for quantized weights")
    (group,) = kv_cache_config.kv_cache_groups
    spec = group.kv_cache_spec
    model, cache = vllm_config.model_config, vllm_config.cache_config
    rank_count = vllm_config.parallel_config.tensor_parallel_size
    numerics = {
        "vllm": vllm.__version__,
        "block": spec.block_size,
        "page_bytes": spec.page_size_bytes,
        "layers": len(group.layer_names),
        "kv_heads": spec.num_kv_heads,
        "head": spec.head_size,
        "kv_dtype": spec.dtype,
        "dtype": model.dtype,
        "quantization": model.quantization,
        "kv_layout": kv_cache_config.kv_cache_layout,
        "tp": rank_count,
        "config": config_digest(model.hf_config.to_dict()),
        "settings": settings_digest(vllm_config),
        "kernels": kernels(vllm_config, spec),
        "hash": cache.prefix_caching_hash_algo,
        "hash_seed": os.environ.get("PYTHONHASHSEED"),
    }
    transfer = vllm_config.kv_transfer_config
    assert transfer is not None
    return Setup(
        model=model.model if model.revision is None else f"{model.model}@{model.revision}",
        layout=" ".join(f"{name}={value}" for name, value in numerics.items()),
        block_size=spec.block_size,
        block_count=kv_cache_config.num_blocks,
        rank_count=rank_count,
        engine_id=str(transfer.engine_id),
        endpoints=[endpoint(f"{transfer.engine_id}-{tag(options)}", r) for r in range(rank_count)],
    )


def config_digest(config: dict[str, Any]) -> str:
    """KV depends on more than weights: norms' epsilon, positions, and so on."""
    return short_digest(json.dumps(config, sort_keys=True, default=str))


def short_digest(text: str, digits: int = 16) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def settings_digest(vllm_config: "VllmConfig") -> str:
    """What vLLM itself takes for part of the computation, by the same hashes that name its compiled
    graphs: the type of KV by name (several are bytes to torch), the longest context (some models turn
    positions by it), the attention backend that was asked for, and more than these."""
    parts = (vllm_config.model_config, vllm_config.cache_config, vllm_config.attention_config)
    return short_digest(" ".join(part.compute_hash() for part in parts))


def kernels(vllm_config: "VllmConfig", spec: FullAttentionSpec) -> str:
    """What no configuration says: attention on CPU orders a block's bytes by the instructions that
    the machine has."""
    return str(
        _get_attn_isa(
            vllm_config.model_config.dtype,
            spec.block_size,
            spec.head_size,
            vllm_config.cache_config.cache_dtype,
        )
    )


def tag(options: Options) -> str:
    """Tells two of ours inside one MultiConnector apart: they share the engine's id."""
    return short_digest(repr(options), digits=8)


def endpoint(engine_id: str, rank: int) -> str:
    """The folder is made with mode 0700 by who binds first."""
    base = os.environ.get("VLLM_RPC_BASE_PATH") or tempfile.gettempdir()
    return f"ipc://{base}/newmoon-{os.getuid()}/{engine_id}-rank{rank}.sock"
