"""Worker role: hands the core the KV tensors and each step's message."""

from typing import TYPE_CHECKING

from newmoon._core import ConnectorWorker
from newmoon.vllm.metadata import ReportMetadata, StepMetadata
from newmoon.vllm.metrics import CounterDeltas, NewmoonStats
from newmoon.vllm.options import Options
from newmoon.vllm.support import Setup

if TYPE_CHECKING:
    import torch


class WorkerSide:
    """Lives in a rank's process, on its forward thread."""

    def __init__(self, setup: Setup, options: Options, rank: int):
        self._setup, self._options, self._rank = setup, options, rank
        self._core: ConnectorWorker | None = None
        self._report: bytes | None = None
        self._failed_blocks: set[int] = set()
        self._counters = CounterDeltas()

    def register_kv_caches(self, kv_caches: "dict[str, torch.Tensor]") -> None:
        if self._core is not None:
            raise RuntimeError(
                "newmoon: vLLM has one connector a process, and another engine has it; start each"
                " engine in a process of its own (VLLM_ENABLE_V1_MULTIPROCESSING=1)"
            )
        setup, options = self._setup, self._options
        self._core = ConnectorWorker(
            store=options.store,
            store_bytes=options.store_bytes,
            store_timeout_s=options.store_timeout_s,
            load_timeout_s=options.load_timeout_s,
            layout=setup.layout,
            rank=self._rank,
            rank_count=setup.rank_count,
            block_size=setup.block_size,
            endpoint=setup.endpoints[self._rank],
            engine_id=setup.engine_id,
            regions=regions_of(kv_caches, setup.block_count),
            block_count=setup.block_count,
            staging_bytes=options.staging_bytes,
            identity=options.identity,
        )

    @property
    def weight_writes(self) -> int:
        return 0 if self._core is None else self._core.weight_writes

    def note_weight_write(self) -> None:
        if self._core is not None:
            self._core.note_weight_write()

    def bind(self, metadata: StepMetadata) -> None:
        if self._core is not None:
            self._core.bind(metadata.message)

    def start_load_kv(self) -> None:
        if self._core is not None:
            self._core.start_load_kv()

    def wait_for_save(self) -> None:
        if self._core is not None:
            self._core.wait_for_save()

    def take_finished(self) -> tuple[set[str], set[str]]:
        """Requests whose loads ended, and those of them that brought nothing."""
        if self._core is None:
            return set(), set()
        self._report, loads, failed_loads, failed_blocks = self._core.take_finished()
        self._failed_blocks = set(failed_blocks)
        return set(loads), set(failed_loads)

    def take_failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def take_report(self) -> ReportMetadata | None:
        report, self._report = self._report, None
        return None if report is None else ReportMetadata([report])

    def take_stats(self) -> NewmoonStats | None:
        return None if self._core is None else self._counters.take(self._core.stats())

    def close(self) -> None:
        if self._core is not None:
            self._core.close()
            self._core = None


def regions_of(
    kv_caches: "dict[str, torch.Tensor]", block_count: int
) -> list[tuple[int, int, int]]:
    """(address, bytes from block to block, bytes a block) of each tensor, in vLLM's order.

    Raises ValueError for a tensor whose blocks are no plain bytes of this machine's memory.
    """
    regions = []
    for name, tensor in kv_caches.items():
        if tensor.device.type != "cpu":
            raise ValueError(f"newmoon: KV on device '{tensor.device}' is not supported yet")
        if tensor.shape[0] != block_count or not tensor[0].is_contiguous():
            raise ValueError(
                f"newmoon: the KV layout of {name} is not supported "
                f"(shape {tuple(tensor.shape)}, stride {tensor.stride()}, {block_count} blocks)"
            )
        item = tensor.element_size()
        region = (tensor.data_ptr(), tensor.stride(0) * item, tensor[0].numel() * item)
        if region not in regions:  # layers may share one
            regions.append(region)
    return regions
