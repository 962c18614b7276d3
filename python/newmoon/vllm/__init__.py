"""Newmoon for vLLM: the class to name in --kv-transfer-config.

    --kv-transfer-config '{"kv_connector": "NewmoonConnector",
                           "kv_connector_module_path": "newmoon.vllm", "kv_role": "kv_both",
                           "kv_connector_extra_config": {"store": "memory"}}'
"""

try:
    import vllm as _vllm  # noqa: F401
except ImportError as _error:
    raise ImportError(
        "newmoon.vllm needs vLLM in the same environment; newmoon alone does not"
    ) from _error

from newmoon.vllm.connector import NewmoonConnector
from newmoon.vllm_plugin import register

register()  # the entry point may be left out, and MultiConnector looks its children up by name

__all__ = ["NewmoonConnector"]
