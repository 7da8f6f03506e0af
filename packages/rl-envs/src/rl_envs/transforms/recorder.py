"""``TensorDictRecorder``: keeps the steps of an environment and writes them to files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tensordict import TensorDictBase

from rl_core import Transform
from rl_core.envs.stack_steps import stack_steps
from rl_core.errors import EnvError, KeyMissingError
from rl_core.keys import Key, as_keys

__all__ = ["TensorDictRecorder"]


class TensorDictRecorder(Transform):
    """Keeps what steps (and resets) write; :meth:`dump` writes a folder of memory-mapped tensors.

    ``TensorDict.load_memmap(folder)`` reads one, ``[*B, T]`` with time last.

    Args:
        out_file_base: folders are named ``{out_file_base}_{i}``, i counting the dumps.
        skip_reset: leave out what resets write.
        skip: keep one of so many steps, the first one on.
        in_keys: the entries; default: all.
    """

    def __init__(
        self, out_file_base: str | Path, skip_reset: bool = True, skip: int = 4, in_keys: Sequence[Key] | None = None
    ) -> None:
        super().__init__()
        if skip < 1:
            raise ValueError(f"skip is {skip}; one of so many steps is kept, so it is 1 or more")
        self.out_file_base, self.skip_reset, self.skip = str(out_file_base), skip_reset, skip
        self.in_keys = as_keys(in_keys)
        self.count = self.iter = 0
        self._kept: list[TensorDictBase] = []

    def _keep(self, tensordict: TensorDictBase) -> TensorDictBase:
        if self.count % self.skip == 0:
            for key in self.in_keys:
                if tensordict.get(key, None) is None:
                    raise KeyMissingError(self._missing(key, tensordict))
            kept = tensordict.select(*self.in_keys) if self.in_keys else tensordict
            self._kept.append(kept.detach().clone())
        self.count += 1
        return tensordict

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return self._keep(next_tensordict)

    def _reset(self, tensordict: TensorDictBase | None, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset if self.skip_reset else self._keep(tensordict_reset)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Stored data stay as they are."""
        return tensordict

    def dump(self, suffix: str | None = None, step: int | None = None) -> Path:
        """Write what was kept, and begin anew.

        Args:
            suffix: the folder's ending instead of the number.
            step: the ending, where there is no suffix.

        Returns:
            the folder.
        """
        if not self._kept:
            raise EnvError("TensorDictRecorder kept nothing since the last dump; step its environment first")
        number = self.iter if step is None else step
        folder = Path(f"{self.out_file_base}_{number if suffix is None else suffix}")
        common = set.intersection(*({*one.keys(True, True)} for one in self._kept))
        steps = [one.select(*common) for one in self._kept]
        stack_steps(steps, steps[0].batch_dims, True).memmap(str(folder))
        self.iter += 1
        self.count, self._kept = 0, []
        return folder
