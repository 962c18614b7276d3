"""The connector with its fence taken out: what the tests of guarantees must be able to see."""

from newmoon.vllm import NewmoonConnector


class UnfencedConnector(NewmoonConnector):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self._scheduler is not None:
            self._scheduler._fence_after_local_reset = lambda: None

    @property
    def weight_watcher(self):
        return None  # nothing is sealed

    def reset_cache(self):
        return None if self._scheduler is None else True
