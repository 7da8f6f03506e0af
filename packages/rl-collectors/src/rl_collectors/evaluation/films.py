"""Films of an evaluation: recorders among the environment's transforms write theirs at its end, or look away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from rl_collectors.background import StoppedError
from rl_collectors.evaluation.statistics import transforms_of
from rl_core.envs.base import EnvBase

__all__ = ["filming"]


@runtime_checkable
class _Recorder(Protocol):
    """A transform that keeps pictures until :meth:`~rl_core.Transform.dump`, at most so many."""

    max_frames: int | None


@contextmanager
def filming(env: EnvBase, on: bool, step: int | None) -> Iterator[None]:
    """A block that is filmed, or is not.

    Args:
        env: its transforms are asked to write what they recorded (``dump``) at the end of the block; where it ends with
            an error, as "incomplete".
        on: otherwise recorders keep nothing within the block, and write nothing.
        step: frames trained so far.
    """
    if on:
        try:
            yield
        except StoppedError:
            raise
        except Exception:
            _dump(env, "incomplete", step)
            raise
        _dump(env, None, step)
        return
    recorders = [part for part in transforms_of(env) if isinstance(part, _Recorder)]
    limits = [recorder.max_frames for recorder in recorders]
    for recorder in recorders:
        recorder.max_frames = 0
    try:
        yield
    finally:
        for recorder, limit in zip(recorders, limits, strict=True):
            recorder.max_frames = limit


def _dump(env: EnvBase, suffix: str | None, step: int | None) -> None:
    for part in transforms_of(env):
        part.dump(suffix=suffix, step=step)
