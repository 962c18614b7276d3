"""Ours among vLLM's connectors: the one it has, or children of a MultiConnector."""

from typing import Any


def sides_of(connector: Any, side: str) -> list[Any]:
    """The attribute `side` of each that has one. `connector`: None is fine."""
    connectors = [connector, *getattr(connector, "_connectors", ())]
    found = (getattr(one, side, None) for one in connectors)
    return [one for one in found if one is not None]
