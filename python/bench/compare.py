"""Figures next to a peer's of the same run: medians, their ratio with an interval, targets."""

import dataclasses
import random
import statistics

RESAMPLES = 1000


@dataclasses.dataclass
class Row:
    """One figure of every column; the first column is the peer's."""

    name: str
    unit: str
    samples: dict[str, list[float]]
    more_is_better: bool = False
    # By column: how many times better than the peer it must be at least.
    targets: dict[str, float] = dataclasses.field(default_factory=dict)

    @property
    def peer(self) -> str:
        return next(iter(self.samples))

    def ratio(self, column: str) -> float:
        """How many times better than the peer."""
        return self._ratio(self.samples[self.peer], self.samples[column])

    def interval(self, column: str) -> tuple[float, float]:
        """95 of 100 ratios of samples drawn again (bootstrap)."""
        draw = random.Random(1)
        peer, ours = self.samples[self.peer], self.samples[column]
        ratios = sorted(
            self._ratio(draw.choices(peer, k=len(peer)), draw.choices(ours, k=len(ours)))
            for _ in range(RESAMPLES)
        )
        return ratios[RESAMPLES // 40], ratios[-1 - RESAMPLES // 40]

    def _ratio(self, peer: list[float], ours: list[float]) -> float:
        times = statistics.median(peer) / statistics.median(ours)
        return 1 / times if self.more_is_better else times

    def missed(self) -> list[str]:
        return [
            f"{self.name}, {column}: {self.ratio(column):.2f}x, not {target:g}x"
            for column, target in self.targets.items()
            if self.ratio(column) < target
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "unit": self.unit,
            "medians": {column: statistics.median(all) for column, all in self.samples.items()},
            "samples": {column: len(all) for column, all in self.samples.items()},
            "times_better": {
                column: {"ratio": self.ratio(column), "interval": self.interval(column)}
                for column in list(self.samples)[1:]
            },
            "targets": self.targets,
        }


@dataclasses.dataclass
class Flat:
    """Medians of one column at several sizes, of which the largest is to be near the smallest."""

    name: str
    samples: list[list[float]]
    target: float | None = None  # none: shown only

    @property
    def spread(self) -> float:
        medians = [statistics.median(one) for one in self.samples]
        return max(medians) / min(medians)

    def missed(self) -> list[str]:
        if self.target is None or self.spread <= self.target:
            return []
        return [f"{self.name}: {self.spread:.2f}, above {self.target:g}"]

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "largest_to_smallest": self.spread, "target": self.target}


def print_table(rows: list[Row], flat: list[Flat]) -> None:
    columns = list(rows[0].samples) if rows else []
    print("| figure | " + " | ".join(columns) + " | target |")
    print("|---|" + "---|" * (len(columns) + 1))
    for row in rows:
        cells = []
        for column, samples in row.samples.items():
            cell = f"{statistics.median(samples):.3g} {row.unit}"
            if column != row.peer:
                low, high = row.interval(column)
                cell += f" ({row.ratio(column):.2f}x, {low:.2f}-{high:.2f})"
            cells.append(cell)
        targets = [f"{column} {target:g}x" for column, target in row.targets.items()]
        verdict = ", ".join(targets) + (": MISSED" if row.missed() else "") if targets else ""
        print(f"| {row.name} | " + " | ".join(cells) + f" | {verdict} |")
    for one in flat:
        target = "" if one.target is None else f", target {one.target:g}"
        print(f"{one.name}: {one.spread:.2f}{target}{': MISSED' if one.missed() else ''}")
