"""``LLMCollector``: runs a language model in a chat environment and yields batches of turns."""

from __future__ import annotations

import queue as queues
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from tensordict import LazyStackedTensorDict, TensorDictBase

from rl_collectors import Background, FrameBudget
from rl_core.collectors.contract import BaseCollector
from rl_core.collectors.weight_sync import WeightSync
from rl_core.envs.base import EnvBase
from rl_core.envs.stack_steps import stack_steps
from rl_core.errors import CollectorError
from rl_llm.collectors.arguments import check_kinds, make_env, one_of_two
from rl_llm.collectors.dialogs import Dialog, Dialogs
from rl_llm.collectors.turns import Turns
from rl_llm.collectors.versions import PolicyVersions

__all__ = ["LLMCollector"]

_PATIENCE = 1000


class Queue(Protocol):
    """Takes batches, as ``queue.Queue`` does."""

    def put(self, item: Any, block: bool, timeout: float) -> Any:
        """Add an item; wait for room so many seconds at most, and raise ``queue.Full`` then."""
        ...


class LLMCollector(BaseCollector):
    """Yields the turns of dialogs between a policy and a chat environment.

    A frame is a turn of the policy. Two kinds of batches:

    - steps (the default): ``[B, T]``, T turns of each of the B chats of the environment, a lazy stack where turns are
      ragged; dialogs go on from batch to batch;
    - whole dialogs (``yield_completed_trajectories=True``): ``[N]``, the dialogs that have ended, in the order in
      which they began, each from its first turn to its last; N is at least ``dialog_turns_per_batch`` (the last batch
      may be smaller). What buffers with ``MCAdvantage`` take.

    Every row has ``("collector", "traj_ids")`` and, on demand, ``policy_version``, int64 both.

    Args:
        env: a chat environment (stays open when the collector shuts down), a function that makes one, or a name such as
            ``"chat:letters"`` (closed with the collector). It must find its questions by itself, and, for whole
            dialogs, end them.
        policy: what writes the turns, e.g. a TransformersWrapper or a vLLMWrapper. It is used as it is.
        policy_factory: makes the policy instead.
        dialog_turns_per_batch: turns in a batch: for steps a multiple of B; for whole dialogs the least number, by
            default 1 (a batch as soon as any dialog has ended).
        frames_per_batch: another name of it.
        yield_only_last_steps: whole dialogs, of which the last turn alone is yielded; the others still count as frames.
        yield_completed_trajectories: whole dialogs instead of steps; default: as ``yield_only_last_steps``.
        postproc: a function of each batch.
        total_dialog_turns: turns of the run; the last batch holds what remains. -1: no end.
        total_frames: another name of it.
        async_envs: None or False: chats step together.
        replay_buffer: extend this buffer with each batch, and yield None.
        reset_at_each_iter: begin new dialogs with every batch. Whole dialogs: those under way are given up, so that
            long ones are rarer in the data than in truth.
        flatten_data: steps as rows ``[B * T]``, chat by chat; default: where there is a replay buffer. Whole dialogs
            are always rows.
        weight_updater: another name of ``weight_sync``.
        weight_sync: brings new weights to the policy (``ModuleWeightSync``, ``VLLMWeightSync``); default: none is
            needed where the policy is the model that is trained, else the weights are copied.
        queue: put each batch there, and yield None.
        track_policy_version: write ``policy_version``.
        max_policy_lag: dialogs that began more than so many versions ago are stale: left out and counted.
        stale: "drop" them, or "raise".
        verbose: print a line for each batch.

    Raises:
        CollectorError: options that contradict each other, numbers that do not divide.

    Example:
        >>> from rl_llm.data.containers import Text
        >>> from rl_llm.envs.dataset import DatasetChatEnv
        >>> env = DatasetChatEnv(dataset=["a", "b"], shuffle=False, num_envs=2, max_steps=2, input_mode="text")
        >>> def policy(td):
        ...     text = [prompt + "!" for prompt in td["text"].texts("prompt")]
        ...     return td.set("text", Text(prompt=td["text"].prompt, full=text, batch_size=[2]))
        >>> for batch in LLMCollector(env, policy, dialog_turns_per_batch=4, yield_completed_trajectories=True,
        ...                           total_dialog_turns=8):
        ...     print(batch["collector", "traj_ids"].tolist(), batch["next", "done"].flatten().tolist())
        [0, 0, 1, 1] [False, True, False, True]
        [2, 2, 3, 3] [False, True, False, True]
    """

    def __init__(
        self,
        env: EnvBase | Callable[[], EnvBase] | str,
        policy: Any = None,
        *,
        policy_factory: Callable[[], Any] | None = None,
        dialog_turns_per_batch: int | None = None,
        frames_per_batch: int | None = None,
        yield_only_last_steps: bool | None = None,
        yield_completed_trajectories: bool | None = None,
        postproc: Callable[[TensorDictBase], TensorDictBase] | None = None,
        total_dialog_turns: int | None = -1,
        total_frames: int | None = None,
        async_envs: bool | None = None,
        replay_buffer: Any = None,
        reset_at_each_iter: bool = False,
        flatten_data: bool | None = None,
        weight_updater: WeightSync | None = None,
        weight_sync: WeightSync | None = None,
        queue: Queue | None = None,
        track_policy_version: bool = False,
        max_policy_lag: int | None = None,
        stale: str = "drop",
        verbose: bool = False,
    ) -> None:
        turns = one_of_two("dialog_turns_per_batch", dialog_turns_per_batch, "frames_per_batch", frames_per_batch)
        total = total_dialog_turns if total_frames is None else total_frames
        if total_frames is not None and total_dialog_turns not in (-1, None, total_frames):
            raise CollectorError(
                f"total_dialog_turns={total_dialog_turns} and total_frames={total_frames} are one thing"
            )
        self.yield_only_last_steps = bool(yield_only_last_steps)
        self.whole_dialogs = (
            self.yield_only_last_steps if yield_completed_trajectories is None else yield_completed_trajectories
        )
        self.flatten_data = (replay_buffer is not None) if flatten_data is None else flatten_data
        check_kinds(self.whole_dialogs, self.yield_only_last_steps, flatten_data, async_envs, turns, stale)
        if (policy is None) == (policy_factory is None):
            raise CollectorError("a chat needs one policy: pass policy (or policy_factory), there are no random turns")
        self.env, self._owns_env = make_env(env)
        rows = self.env.batch_size.numel()
        self.budget = FrameBudget.checked(1 if self.whole_dialogs else rows, 1 if turns is None else turns, total, None)
        self.policy = policy if policy_factory is None else policy_factory()
        sync = one_of_two("weight_sync", weight_sync, "weight_updater", weight_updater)
        self.versions = PolicyVersions(self.policy, sync)
        self.track_policy_version, self.max_policy_lag, self.stale = track_policy_version, max_policy_lag, stale
        self.postproc, self.replay_buffer, self.queue = postproc, replay_buffer, queue
        self.reset_at_each_iter, self.verbose = reset_at_each_iter, verbose
        self.frames, self.iteration, self.closed = 0, 0, False
        self._counts = dict.fromkeys(("dialogs", "stale_dialogs", "stale_turns", "abandoned_dialogs", "max_lag"), 0)
        self._turns = Turns(self.env, self.policy, self.versions)
        self._dialogs = Dialogs(rows)
        self._background: Background | None = None

    # ---------------------------------------------------------------- collecting
    def __iter__(self) -> Iterator[Any]:
        """Batches until the budget is spent; the collector shuts down then, or when an error passes through.

        A loop that is left early can be taken up again by another one.
        """
        try:
            while (batch := self.next()) is not None:
                yield batch if self._deliver(batch) else None
        except GeneratorExit:  # the caller left its loop
            raise
        except BaseException:
            self.shutdown()
            raise
        self.shutdown()

    def next(self) -> TensorDictBase | None:
        """One more batch, or None when the budget is spent."""
        if self.closed:
            raise CollectorError("this collector is shut down; construct a new one")
        wanted = self.budget.steps(self.frames)
        return self._collect(wanted) if wanted else None

    def rollout(self) -> TensorDictBase:
        """One more batch of full size, whatever the budget says."""
        if self.closed:
            raise CollectorError("this collector is shut down; construct a new one")
        return self._collect(self.budget.frames_per_batch // self.budget.rows)

    def _deliver(self, batch: TensorDictBase) -> bool:
        """Hand a batch to buffer and queue; True where there is none, so that it is yielded."""
        if self.replay_buffer is not None:
            self.replay_buffer.extend(batch)
        while self.queue is not None and not self.closed:
            try:
                self.queue.put(batch, True, 0.2)
                break
            except queues.Full:  # look whether anyone still wants it
                continue
        return self.replay_buffer is None and self.queue is None

    @torch.no_grad()
    def _collect(self, wanted: int) -> TensorDictBase:
        if self.reset_at_each_iter and self.iteration:
            self.reset()
        self.versions.check()
        before = self.frames
        batch = self._whole_dialogs(wanted) if self.whole_dialogs else self._steps(wanted)
        self.iteration += 1
        if self.verbose:
            rows, version = batch.numel(), self.policy_version
            print(f"LLMCollector: {rows} rows of {self.frames - before} turns, {self.frames} in all, policy {version}")
        return batch if self.postproc is None else self.postproc(batch)

    def _steps(self, count: int) -> TensorDictBase:
        steps = [self._turns.stamped(self._turns.take(), self.track_policy_version) for _ in range(count)]
        self.frames += count * self.budget.rows
        if not self.flatten_data:
            return stack_steps(steps, 1, contiguous=False)
        by_step = [step.unbind(0) for step in steps]
        return LazyStackedTensorDict(*[row for chat in zip(*by_step, strict=True) for row in chat])

    def _whole_dialogs(self, wanted: int) -> TensorDictBase:
        kept: list[Dialog] = []
        while sum(len(dialog.turns) for dialog in kept) < wanted:
            turn = self._turns.take()
            rows = self._turns.stamped(turn, self.track_policy_version).unbind(0)
            for dialog in self._dialogs.add(rows, turn.numbers.tolist(), turn.ended.tolist(), turn.version):
                self.frames += len(dialog.turns)
                self._counts["dialogs"] += 1
                if self._is_fresh(dialog):
                    kept.append(dialog)
            if self._dialogs.longest > _PATIENCE:
                raise CollectorError(
                    f"a dialog has not ended after {_PATIENCE} turns; whole dialogs need an environment that ends "
                    "them: max_turns=... (max_steps of a DatasetChatEnv), or a reward that sets done"
                )
        kept.sort(key=lambda dialog: dialog.number)
        only_last = self.yield_only_last_steps
        return LazyStackedTensorDict(*[row for d in kept for row in (d.turns[-1:] if only_last else d.turns)])

    def _is_fresh(self, dialog: Dialog) -> bool:
        lag = self.policy_version - dialog.version
        self._counts["max_lag"] = max(self._counts["max_lag"], lag)
        if self.max_policy_lag is None or lag <= self.max_policy_lag:
            return True
        if self.stale == "raise":
            raise CollectorError(
                f"dialog {dialog.number} began {lag} policy versions ago, max_policy_lag is {self.max_policy_lag}: "
                "update the weights less often, end dialogs earlier, or let stale='drop' leave such dialogs out"
            )
        self._counts["stale_dialogs"] += 1
        self._counts["stale_turns"] += len(dialog.turns)
        return False

    # ---------------------------------------------------------------- beside training
    def start(self, *, batches_per_update: int = 1) -> None:
        """Collect in a thread, into the replay buffer or the queue, until the budget is spent or :meth:`shutdown`.

        With ``max_policy_lag`` the thread paces itself: batch number n is begun only when the weights were updated
        ``n / batches_per_update - max_policy_lag`` times, so that nothing has to be thrown away. Draws from torch's
        global generator are then no longer in a fixed order.

        Args:
            batches_per_update: how many batches the learner takes for each ``update_policy_weights_``.

        Raises:
            CollectorError: there is nowhere to put batches, or the policy is the model that is trained itself.
        """
        if self.closed or self._background is not None:
            raise CollectorError("start() may be called once, before shutdown()")
        if self.replay_buffer is None and self.queue is None:
            raise CollectorError("start() needs a replay_buffer or a queue, into which the thread puts its batches")
        if self.versions.sync is None:
            raise CollectorError(
                "start() collects while the model is trained: give the policy a model of its own, and the collector "
                "the weight_sync that brings the weights there between two calls"
            )
        if batches_per_update < 1:
            raise CollectorError(f"batches_per_update={batches_per_update}; it is at least 1")
        first, begun = self.policy_version, self.iteration

        def may_begin() -> bool:
            if self.max_policy_lag is None:
                return True
            updates = self.policy_version - first
            return self.iteration - begun < (updates + self.max_policy_lag + 1) * batches_per_update

        def collect() -> bool:
            batch = self.next()
            if batch is not None:
                self._deliver(batch)
            return batch is not None

        self._background = Background(collect, f"{type(self).__name__}.start", may_begin)
        self._background.start()

    def is_running(self) -> bool:
        """Whether the thread collects (or waits for the learner).

        Raises:
            CollectorError: it has failed.
        """
        if self._background is None:
            return False
        self._background.check()
        return self._background.running

    # ---------------------------------------------------------------- steering
    @property
    def policy_version(self) -> int:
        """How often the policy's weights were updated."""
        return self.versions.current

    def update_policy_weights_(self, policy_or_weights: Any = None, **kwargs: Any) -> None:
        """Give the acting policy the trained weights, between two of its calls, and raise the version by one.

        Args:
            policy_or_weights: the model that is trained, a policy over it, or names and tensors. None: the policy is
                the model that is trained.
            **kwargs: ``weights`` or ``policy``, other spellings of the argument.

        Raises:
            CollectorError: the weights did not arrive.
        """
        given = policy_or_weights
        for name in ("weights", "policy", "policy_weights"):
            given = kwargs.pop(name, None) if given is None else given
        if kwargs:
            raise TypeError(f"update_policy_weights_ takes no {', '.join(kwargs)}")
        if self._background is not None:
            self._background.check()
        self.versions.update(given)
        if self._background is not None:
            self._background.wake()

    def reset(self) -> None:
        """Begin new dialogs in every row; those under way are given up and counted."""
        if self.whole_dialogs:
            self._counts["abandoned_dialogs"] += self._dialogs.abandon()
        self._turns.restart()

    def set_seed(self, seed: int, static_seed: bool = False) -> int:
        """Seed the environment's data; takes effect with the questions drawn from now on."""
        following = self.env.set_seed(seed, static_seed)
        assert following is not None
        return following

    def get_stats(self) -> dict[str, int]:
        """Counts so far.

        Returns:
            ``turns`` (of ended dialogs, or of steps), ``dialogs`` that ended, ``stale_dialogs`` and ``stale_turns``
            that were left out, ``abandoned_dialogs``, ``max_lag`` (versions between a dialog's begin and its end), and
            the ``policy_version``.
        """
        return {"turns": self.frames, **self._counts, "policy_version": self.policy_version}

    def shutdown(self) -> None:
        """Stop the thread, and close the environment if this collector made it; calling it twice is harmless.

        Raises:
            CollectorError: the thread has failed, which nobody was told yet.
        """
        closed, self.closed = self.closed, True
        if self._background is not None:
            self._background.stop()
        if not closed and self._owns_env:
            self.env.close()
        if self._background is not None and self._background.failed_untold and not closed:
            self._background.check()

    # ---------------------------------------------------------------- checkpoints
    def state_dict(self) -> dict[str, Any]:
        """Counters, trajectory ids and the environment's place in its data; the policy's weights are the learner's."""
        return {
            "frames": self.frames,
            "iteration": self.iteration,
            "policy_version": self.policy_version,
            "counts": dict(self._counts),
            "turns": self._turns.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a :meth:`state_dict` back. Dialogs that were under way are lost, new ones begin."""
        self.frames, self.iteration = int(state_dict["frames"]), int(state_dict["iteration"])
        self.versions.restore(int(state_dict["policy_version"]))
        self._counts = {name: int(value) for name, value in state_dict["counts"].items()}
        self._turns.load_state_dict(state_dict["turns"])
        self._dialogs.abandon()

    def __repr__(self) -> str:
        kind = "whole dialogs" if self.whole_dialogs else "steps"
        return f"LLMCollector({self.env!r}, {kind}, frames_per_batch={self.budget.frames_per_batch})"
