"""The environments of one process that step side by side: made, described, seeded, each with its own random stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rl_core import Composite, EnvBase, supports_rows

__all__ = ["Description", "Members"]

KINDS = ("observation", "action", "reward", "done", "state")


@dataclass(frozen=True)
class Description:
    """What the batch must know of one of its environments.

    Attributes:
        name: its class.
        batch_size: its own.
        specs: by kind.
        rows: whether it can be stepped on columns.
        allow_done_after_reset: as of the environment.
    """

    name: str
    batch_size: torch.Size
    specs: dict[str, Composite]
    rows: bool
    allow_done_after_reset: bool

    @classmethod
    def of(cls, env: EnvBase) -> Description:
        """Describe an environment; its specs are copied to the CPU."""
        specs = {kind: getattr(env, f"full_{kind}_spec").clone() for kind in KINDS}
        if env.device is not None:
            specs = {kind: spec.to("cpu") for kind, spec in specs.items()}
        return cls(type(env.base_env).__name__, env.batch_size, specs, supports_rows(env), env.allow_done_after_reset)


class Members:
    """Environments in a row, and the random stream of each.

    An environment draws from its own generator, or from torch's global one, which all of this process share. Those that
    do the latter get a stream each: the global generator is set to it while they act. So a batch gives the same numbers
    whichever process its environments are in. Who draws is found at seeding, in the first reset and in the first step.

    Args:
        makers: what makes them.
        streams: give them streams; False where several threads would set the global generator at once.

    Attributes:
        envs: the environments.
        at: the place of the one at work, for messages.
        plain: for each, whether it leaves torch's generator alone.
        held: for each, whether its episode ended in columns of one step, so that it stands still until its reset.
        reset_kwargs: arguments for the reset that follows, by environment.
        given: whether that reset reads states (the constants of a stateless environment) from the columns.
    """

    def __init__(self, makers: Sequence[Callable[[], EnvBase]], *, streams: bool = True) -> None:
        self.envs: list[EnvBase] = []
        self.at = 0
        self.seeded, self.streams = False, streams
        self.reset_kwargs: Sequence[Mapping[str, Any]] | None = None
        self.given = False
        self.add(makers)

    def add(self, makers: Sequence[Callable[[], EnvBase]]) -> None:
        """Make the environments, of a batch that has none yet."""
        try:
            for index, make in enumerate(makers):
                self.at = index
                self.envs.append(make())
        except BaseException:
            for env in self.envs:
                env.close()
            raise
        self.held = [False] * len(self.envs)
        self.plain = [True] * len(self.envs)
        self._streams: list[Tensor | None] = [None] * len(self.envs)
        self._watched: list[set[str]] = [set() for _ in self.envs]

    def __len__(self) -> int:
        return len(self.envs)

    def describe(self) -> list[Description]:
        """Every environment's description."""
        found = []
        for index, env in enumerate(self.envs):
            self.at = index
            found.append(Description.of(env))
        return found

    # ---------------------------------------------------------------- randomness
    def seed(self, seeds: Sequence[int]) -> None:
        """Seed every environment; torch's generator is left as it was."""
        outer = torch.get_rng_state()
        try:
            for index, (env, seed) in enumerate(zip(self.envs, seeds, strict=True)):
                self.at = index
                torch.set_rng_state(outer)
                env.set_seed(seed)
                if not self.streams:
                    continue
                state = torch.get_rng_state()
                draws = not torch.equal(state, outer)
                if not draws:
                    torch.manual_seed(seed)
                    state = torch.get_rng_state()
                self.plain[index], self._streams[index] = False, state
                self._watched[index] = set() if draws else {"reset", "step"}
        finally:
            torch.set_rng_state(outer)
        self.seeded = True

    def kwargs(self, index: int) -> Mapping[str, Any]:
        """The arguments for one environment's next reset."""
        return {} if self.reset_kwargs is None else self.reset_kwargs[index]

    def run(self, index: int, phase: str, act: Callable[..., Any], *args: Any) -> Any:
        """``act(*args)`` of one environment, in its random stream."""
        self.at = index
        if self.plain[index]:
            return act(*args)
        stream = self._streams[index]
        assert stream is not None
        outer = torch.get_rng_state()
        torch.set_rng_state(stream)
        try:
            return act(*args)
        finally:
            after = torch.get_rng_state()
            torch.set_rng_state(outer)
            self._watch(index, phase, stream, after)

    def _watch(self, index: int, phase: str, before: Tensor, after: Tensor) -> None:
        watched = self._watched[index]
        if torch.equal(before, after):
            if phase in watched:
                watched.discard(phase)
                self.plain[index] = not watched
        else:
            self._streams[index] = after
            watched.clear()

    def draws_nothing(self, phase: str) -> None:
        """Watch no longer for draws in a phase, of which it is known that it draws nothing."""
        for index, watched in enumerate(self._watched):
            if phase in watched:
                watched.discard(phase)
                self.plain[index] = not watched

    # ---------------------------------------------------------------- life
    def state_dict(self) -> dict[str, Any]:
        """Every environment's state and its random stream."""
        streams = [None if plain else stream for plain, stream in zip(self.plain, self._streams, strict=True)]
        return {"envs": [env.state_dict() for env in self.envs], "streams": streams, "seeded": self.seeded}

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Take a :meth:`state_dict` back; True where every environment goes on with its episode."""
        restored = True
        for index, (env, saved) in enumerate(zip(self.envs, state["envs"], strict=True)):
            self.at = index
            restored = env.load_state_dict(saved) and restored
            stream = state["streams"][index]
            self.plain[index], self._streams[index] = stream is None, stream
            self._watched[index] = set()
        self.seeded = bool(state["seeded"])
        return restored

    def close(self) -> None:
        """Close every environment, the later ones also where an earlier one fails."""
        failed: Exception | None = None
        for index, env in enumerate(self.envs):
            self.at = index
            try:
                env.close()
            except Exception as error:
                failed = failed or error
        if failed is not None:
            raise failed
