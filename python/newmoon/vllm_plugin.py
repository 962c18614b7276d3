"""Entry point `vllm.general_plugins`, which vLLM calls in each of its processes.

It only makes the connector's name known, so that `kv_connector_module_path` may be left out. What
is to be watched is watched by the connector itself, once it is configured (docs/vllm.md).
"""

NAME = "NewmoonConnector"


def register() -> None:
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if NAME not in KVConnectorFactory._registry:  # vLLM may call more than once
        KVConnectorFactory.register_connector(NAME, "newmoon.vllm", NAME)
