"""Which adapter stands behind a name and a path.

vLLM's block hash holds an adapter's name and path, and its workers load an adapter when the first
request for it runs, so the same hash can be of another adapter later.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest


class Adapters:
    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, int]] = {}  # by name and path
        self._unsettled: set[tuple[str, str]] = set()

    def has_changed(self, adapter: "LoRARequest") -> bool:
        """Whether the request may run on another adapter than those of that name and path
        before it: another id, which makes vLLM load it anew; `load_inplace`; other files."""
        key = (adapter.lora_name, adapter.lora_path)
        now = (adapter.lora_int_id, newest_write_ns(adapter.lora_path))
        before = self._seen.get(key, now)
        self._seen[key] = now
        if before[0] != now[0]:
            self._unsettled.discard(key)
        elif before != now:
            self._unsettled.add(key)
        return adapter.load_inplace or before != now

    def may_read(self, adapter: "LoRARequest") -> bool:
        """False: its files are others than those that were loaded under its id, and it may be
        loaded from them at any time, when others have pushed it out. Then not even vLLM's own
        cache can be believed, until another id comes."""
        key = (adapter.lora_name, adapter.lora_path)
        return key not in self._unsettled and not adapter.load_inplace


def newest_write_ns(folder: str) -> int:
    """0 for what is no folder here."""
    try:
        with os.scandir(folder) as files:
            return max((file.stat().st_mtime_ns for file in files), default=0)
    except OSError:
        return 0
