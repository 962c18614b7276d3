"""What the flows of rl_flows.py call in vLLM's worker, which imports this module.

The weights depend on one number, `factor`: the norms', ones in the model, become a ramp from 1 to it.
(Linear weights are prepacked on CPU and cannot be written in place; those of norms can.)
"""

import dataclasses
import os
from typing import Any

import torch
from vllm.distributed.weight_transfer import base, factory


def write_norms(model: Any, factor: float, only: str = "") -> int:
    changed = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layernorm" not in name or (only and name != only):
                continue
            parameter.copy_(torch.linspace(1.0, factor, parameter.numel(), dtype=parameter.dtype))
            changed += 1
    assert changed > 0
    return changed


class WorkerExtension:
    """Called through collective_rpc; with the frameworks' names, where they are theirs."""

    def update_weights_from_ipc(self, factor: float) -> int:
        return write_norms(self.model_runner.model, factor)  # verl's

    def update_weight(self, name: str, factor: float) -> int:
        return write_norms(self.model_runner.model, factor, only=name)  # OpenRLHF's

    def update_weights_from_collective(self, factor: float) -> int:
        return write_norms(self.model_runner.model, factor)  # NeMo-RL's

    def skyrl_sleep_for_weight_sync(self, offload_kv: bool) -> None:
        """SkyRL's, which drives the allocator: what KV memory holds is put aside, and lost there."""
        assert offload_kv
        caches = self.model_runner.kv_caches
        self.kv_aside = [cache.clone() for cache in caches]
        for cache in caches:
            cache.fill_(float("nan"))

    def skyrl_wake_for_weight_sync(self, tags: list[str]) -> None:
        if "kv_cache" in tags:
            for cache, aside in zip(self.model_runner.kv_caches, self.kv_aside, strict=True):
                cache.copy_(aside)

    def write_unseen(self, factor: float) -> int:
        """To be declared as reading: a worker that writes with nobody's knowledge."""
        return write_norms(self.model_runner.model, factor)

    def fail_next_start(self, factor: float) -> None:
        self.weight_transfer_engine.failing_start = factor

    def norm_names(self) -> list[str]:
        names = (name for name, _ in self.model_runner.model.named_parameters())
        return [name for name in names if "layernorm" in name]

    def process_id(self) -> int:
        return os.getpid()

    def stats(self) -> dict[str, int]:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        return get_kv_transfer_group()._worker._core.stats()

    def unfinished_saves(self) -> int:
        """Queued or running; of either connector."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        connector = get_kv_transfer_group()
        if hasattr(connector, "connector_worker"):
            return connector.connector_worker.kv_send_thread.request_queue.unfinished_tasks
        return connector._worker._core.unfinished_saves


@dataclasses.dataclass
class InitInfo(base.WeightTransferInitInfo):
    pass


@dataclasses.dataclass
class UpdateInfo(base.WeightTransferUpdateInfo):
    factor: float
    fails: bool = False  # behind the write


class NormsEngine(base.WeightTransferEngine[InitInfo, UpdateInfo]):
    """vLLM's own start, update and finish, with a transport that needs no GPU."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    failing_start: float | None = None  # the next start writes these weights, and fails

    def init_transfer_engine(self, init_info: InitInfo) -> None: ...
    def finish_weight_update(self) -> None: ...
    def shutdown(self) -> None: ...
    def start_weight_update(self) -> None:
        factor, self.failing_start = self.failing_start, None
        if factor is not None:
            write_norms(self.model, factor)
            raise RuntimeError("this start was to fail")

    def receive_weights(self, update_info: UpdateInfo) -> None:
        write_norms(self.model, update_info.factor)
        if update_info.fails:
            raise RuntimeError("this update was to fail")


factory.WeightTransferEngineFactory.register_engine("norms", NormsEngine)
