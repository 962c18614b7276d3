"""What vLLM carries between the roles for us: bytes of the core's (docs/formats.md)."""

import dataclasses

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)


@dataclasses.dataclass
class StepMetadata(KVConnectorMetadata):
    message: bytes


@dataclasses.dataclass
class ReportMetadata(KVConnectorWorkerMetadata):
    reports: list[bytes]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "ReportMetadata":
        assert isinstance(other, ReportMetadata)
        return ReportMetadata(self.reports + other.reports)
