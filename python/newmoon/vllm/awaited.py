"""What must happen before a sealed fence may open again (rule SEAL), and whether its scope may then
be named after the weights.

A method that has failed has ended on the rank that said so, not on all. What still runs in the
foreground of another one is no danger: a rank runs no step beside it, and counts it (rule BIND). But an
engine of vLLM's for weight transfers may write in the background, from update_weights until
finish_weight_update.
"""

from typing import Any

STARTS = ("start_weight_update", "start_draft_weight_update")
FINISH = "finish_weight_update"
UPDATES = ("update_weights", FINISH)
WAKE_UP = "wake_up"
A_WRITE = "an RPC that may write weights"
A_SLEEP = "a sleep that has failed"


class Awaited:
    def __init__(self) -> None:
        self._until: dict[str, bool] = {}  # true: a reset will do as well
        self._doubts: set[str] = set()  # a write has failed, and none of these succeeded since

    @property
    def nothing(self) -> bool:
        return not self._until

    @property
    def in_doubt(self) -> bool:
        """Nobody knows which weights these are, so nothing may name them."""
        return bool(self._doubts)

    def rpc_succeeded(self, rpc: Any) -> None:
        self._end(A_WRITE)
        self._end(A_SLEEP)
        if rpc in STARTS:
            self._until[FINISH] = False
        elif rpc == FINISH:
            self._end(FINISH)

    def rpc_failed(self, rpc: Any) -> None:
        """A start that fails begins nothing, and ends nothing that was begun before."""
        if rpc in STARTS:
            self._doubts.add(FINISH)
            return
        in_session = FINISH in self._until or FINISH in self._doubts
        what = FINISH if rpc in UPDATES and in_session else A_WRITE
        self._until[what] = True
        self._doubts.add(what)

    def fell_asleep(self) -> None:
        self._until[WAKE_UP] = False

    def sleep_failed(self) -> None:
        """Some ranks may sleep all the same. Nobody may come to wake them up."""
        self._until.pop(WAKE_UP, None)
        self._until[A_SLEEP] = True
        self._doubts.add(A_SLEEP)

    def woke_up(self) -> None:
        """After a sleep that has failed vLLM asks no rank to wake up, so the doubt stays."""
        self._until.pop(WAKE_UP, None)
        self._until.pop(A_SLEEP, None)

    def was_reset(self) -> bool:
        """Whether that ended anything: to whoever resets what failed is over. An update that goes
        on is not, and doubts stay."""
        failed = [what for what, or_reset in self._until.items() if or_reset]
        for what in failed:
            del self._until[what]
        return bool(failed)

    def _end(self, what: str) -> None:
        self._until.pop(what, None)
        self._doubts.discard(what)
