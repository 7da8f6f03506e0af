"""DatasetReport: what was read from a dataset's files, what was left out, and how each episode ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["DatasetReport", "Tally"]


@dataclass
class Tally:
    """Counts of episodes and rows, which grow while a file is read."""

    transitions: int = 0
    episodes: int = 0
    terminated: int = 0
    truncated: int = 0
    cut: int = 0
    repeated: int = 0
    dropped: dict[str, int] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Count in what another part of the files holds."""
        for name in ("transitions", "episodes", "terminated", "truncated", "cut", "repeated"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, rows in other.dropped.items():
            self.drop(reason, rows)

    def drop(self, reason: str, rows: int) -> None:
        """Count rows that are left out."""
        if rows:
            self.dropped[reason] = self.dropped.get(reason, 0) + rows


@dataclass(frozen=True, kw_only=True)
class DatasetReport:
    """The counts of a dataset; ``print`` shows them.

    Attributes:
        source: what was read.
        transitions: rows of the dataset.
        episodes: episodes of the dataset, ``terminated + truncated + cut``.
        terminated: episodes whose end the file calls a termination.
        truncated: episodes whose end the file calls a time limit.
        cut: episodes that stop without an end flag, such as an unfinished last one; they are marked truncated.
        repeated: rows whose next observation the file does not have, so that it repeats the row's own.
        dropped: rows of the file that are not in the dataset, by reason.
        left_out: columns of the file that are not in the dataset, by name, with the reason.
        notes: what else a reader of the data should know.
    """

    source: str
    transitions: int
    episodes: int
    terminated: int
    truncated: int
    cut: int
    repeated: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, source: str, tally: Tally, left_out: Mapping[str, str] | None = None, notes: tuple[str, ...] = ()
    ) -> DatasetReport:
        """The report of counts."""
        return cls(source=source, left_out=dict(left_out or {}), notes=tuple(notes), **asdict(tally))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "notes": list(self.notes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DatasetReport:
        """The inverse of :meth:`as_dict`."""
        return cls(**{**data, "notes": tuple(data["notes"])})

    def __str__(self) -> str:
        """Some lines of text.

        >>> print(DatasetReport(source="a.hdf5", transitions=7, episodes=3, terminated=1, truncated=1, cut=1))
        a.hdf5: 7 transitions, 3 episodes (1 terminated, 1 truncated, 1 cut)
        """
        ends = f"{self.terminated} terminated, {self.truncated} truncated, {self.cut} cut"
        lines = [f"{self.source}: {self.transitions} transitions, {self.episodes} episodes ({ends})"]
        lines += [f"  dropped {rows} rows: {reason}" for reason, rows in self.dropped.items()]
        if self.repeated:
            lines.append(f"  {self.repeated} rows repeat their observation as the next one, which the file lacks")
        lines += [f"  left out {name}: {reason}" for name, reason in self.left_out.items()]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)
