"""What the losses on replayed transitions share: their step, importance weights, priorities, and sequences."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl_core.errors import LossError, SpecError
from rl_core.estimators import ValueEstimator
from rl_core.keys import Key
from rl_core.losses.keys import entry, quoted
from rl_core.losses.module import LossKeys, LossModule
from rl_core.losses.networks import call_on_tensors, read_inputs
from rl_core.losses.sequences import LivedSequence
from rl_core.policy_state import StateCarrier, carried_state, reads_sequences
from rl_core.recurrence import recurrent_burn_in, recurrent_mode, set_recurrent_mode
from rl_objectives.estimators.td import TD0Estimator
from rl_objectives.estimators.values import sequence_inputs
from rl_objectives.losses.priorities import check_priority_type, row_weights, write_priority

__all__ = ["ReplayKeys", "ReplayLoss"]

_STEP = "The environment writes it; a collector keeps it."
_WEIGHTS = (True, False, "auto")


@dataclass(frozen=True)
class ReplayKeys(LossKeys):
    """The entries that every loss on replayed transitions may read, and the one that it writes."""

    action: Key = field(default="action", metadata=entry(producer="The collecting policy writes it."))
    """[*B, A]; of discrete actions one-hot [*B, n], or the index [*B] or [*B, 1]."""
    reward: Key = field(default="reward", metadata=entry(producer=_STEP, under_next=True))
    """[*B, 1]."""
    done: Key = field(default="done", metadata=entry(producer=_STEP, under_next=True))
    """bool [*B, 1]; read where there is no terminated, and by targets of many steps."""
    terminated: Key = field(default="terminated", metadata=entry(producer=_STEP, under_next=True))
    """bool [*B, 1]."""
    discount: Key = "gamma"
    """[*B, 1], read if present (n-step data): gamma to the power of the steps to the next observation."""
    steps_to_next_obs: Key = "steps_to_next_obs"
    """[*B, 1], read if present and there is no discount: the estimator's gamma is raised to it."""
    priority_weight: Key = field(
        default="priority_weight", metadata=entry(producer="A prioritised sampler of a replay buffer writes it.")
    )
    """[*B] or [*B, 1], read if present: importance weights."""
    priority: Key = "td_error"
    """[*B, 1], written: each row's priority."""


class ReplayLoss(LossModule):
    """Base of the losses on replayed transitions: importance weights in, priorities out, rows or sequences.

    **Networks with a memory** (``LSTMModule``) read batches ``[*B, T]`` of sequences, such as slices that a replay
    buffer gives (``batch.reshape(-1, T)``). They start from the states stored at the first rows, from zeros where the
    batch has none, and afresh at each first step; the observation that an episode ends with is read in the state that
    its own step led to. A state that was stored long ago is brought up to date by the first rows of each slice
    (burn-in): leave them out of the loss by a mask, e.g. ``loss.set_keys(mask="learning_mask")`` with a
    ``SliceSampler(..., burn_in=n)``. Gradients end there: none flows through the first steps that the mask leaves out
    in all sequences, nor through the state that they lead to, given modules that heed ``recurrent_burn_in``, as
    ``LSTMModule`` and ``GRUModule`` do. Single rows ``[B]`` are read with the states stored beside them only within
    ``set_recurrent_mode(False)``.

    Args:
        reduction: "mean", "sum" or "none" (per row).
        use_prioritized_weights: True: the batch must have importance weights; False: they are ignored; "auto": used if
            present.
        priority_type: "abs": priorities are absolute errors; "squared": their squares.

    Raises:
        SpecError: an option is not admitted.

    Kapturowski et al., 2019, Recurrent Experience Replay in Distributed Reinforcement Learning, section 3
    (stored states and burn-in).
    """

    default_keys: ClassVar[Any] = ReplayKeys()
    default_value_estimator: ClassVar[type[ValueEstimator] | str | None] = TD0Estimator

    def __init__(
        self,
        *,
        reduction: str = "mean",
        use_prioritized_weights: bool | str = "auto",
        priority_type: str = "abs",
    ) -> None:
        super().__init__(reduction=reduction)
        if use_prioritized_weights not in _WEIGHTS:
            raise SpecError(f"use_prioritized_weights is True, False or 'auto'; got {use_prioritized_weights!r}")
        self.use_prioritized_weights = use_prioritized_weights
        self.priority_type = check_priority_type(priority_type)
        self.carries_state = False
        """Whether one of the networks has a memory."""

    def add_network(self, name: str, network: nn.Module, *, delayed: bool = False) -> None:
        super().add_network(name, network, delayed=delayed)
        self.carries_state |= any(isinstance(module, StateCarrier) for module in network.modules())

    def make_value_estimator(self, value_type: Any = None, **hyperparameters: Any) -> LossModule:
        """Choose how targets are made.

        Args:
            value_type: a member of ``ValueEstimators``, a registered name, a class or an instance; None: TD0.
            **hyperparameters: for the estimator's constructor, e.g. ``gamma=0.99``.

        Returns:
            The loss.

        Raises:
            SpecError: this loss cannot use that estimator.
        """
        before = self.__dict__["_value_estimator"]
        super().make_value_estimator(value_type, **hyperparameters)
        try:
            self.check_estimator(self.value_estimator)
        except SpecError:
            self.__dict__["_value_estimator"] = before
            raise
        return self

    def check_estimator(self, estimator: ValueEstimator) -> None:
        """Raise SpecError where this loss cannot use the estimator."""

    # ---- weights and priorities

    def weights(self, batch: TensorDictBase, rows: Tensor) -> Tensor | None:
        """The importance weights as a factor of per-row losses [*B] or [*B, 1], or None.

        Raises:
            KeyMissingError: they are demanded and absent.
            LossError: they do not fit.
        """
        if self.use_prioritized_weights is False:
            return None
        key = self._paths["priority_weight"]
        weight = batch.get(key, None)
        if weight is not None:
            return row_weights(weight, rows, key, type(self).__name__)
        if self.use_prioritized_weights is True:
            raise self.missing(batch, "priority_weight")
        return None

    def report(self, batch: TensorDictBase, error: Tensor, mask: Tensor | None) -> None:
        """Write the rows' priorities; ``error`` is at least 0, [*B, 1]."""
        write_priority(batch, self._paths["priority"], error, mask, self.priority_type)

    # ---- sequences

    def _losses(self, batch: TensorDictBase) -> dict[str, Tensor]:
        if not self.carries_state:
            return super()._losses(batch)
        with self.along_time(batch):
            return super()._losses(batch)

    def along_time(self, batch: TensorDictBase) -> AbstractContextManager[Any]:
        """The mode in which the networks read this batch; nothing changes for networks without a memory.

        The compiler cannot trace a context variable: enter ``set_recurrent_mode(True, burn_in=...)`` around a compiled
        call.

        Raises:
            LossError: the batch has no time dimension.
        """
        if not self.carries_state or torch.compiler.is_compiling() or recurrent_mode() is False:
            return nullcontext()
        if batch.ndim >= 2:
            return set_recurrent_mode(True, burn_in=_burn_in(self.valid_rows(batch), batch.batch_size))
        if batch.ndim and reads_sequences(self):
            return nullcontext()  # somebody said that the one dimension is time
        raise LossError(
            f"{type(self).__name__}: a network with a memory needs sequences [*B, T]; this batch is "
            f"{list(batch.batch_size)}. Slices that lie one after the other are batch.reshape(-1, T). To train on "
            "single steps from the states stored beside them, without gradient through time: with "
            "set_recurrent_mode(False)."
        )

    def inputs_of(self, network: nn.Module, batch: TensorDictBase, under: Key | None = None) -> list[Tensor]:
        """What a network reads at the root or under "next"; of a network that reads sequences at the root only."""
        if self.carries_state and under is None and reads_sequences(network):
            batch = _with_states(network, batch)
        return read_inputs(network, batch, type(self).__name__, under=under)

    def lived(self, network: nn.Module, batch: TensorDictBase) -> tuple[LivedSequence, list[Tensor]] | None:
        """The batch as it was lived, and a network's inputs in that order; None for a network that reads rows."""
        if not self.carries_state or not reads_sequences(network):
            return None
        now, following = sequence_inputs(network, batch, type(self).__name__)
        ends, mask = self.read(batch, "done"), self.valid_rows(batch)
        if mask is not None:
            ends = ends | _last_of_run(mask).reshape(mask.shape + (1,) * (ends.ndim - mask.ndim))
        sequence = LivedSequence.of(network, now, batch.batch_size, ends)
        return sequence, [sequence.join(*pair) for pair in zip(now, following, strict=True)]

    def output_of(
        self,
        network: nn.Module,
        key: Key,
        batch: TensorDictBase,
        under: Key | None = None,
        *,
        weights: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """One output of a network, for the observations at the root or under "next"; with these weights, if any."""
        lived = self.lived(network, batch) if self.carries_state and under is not None else None
        if lived is None:
            return call_on_tensors(
                network, self.inputs_of(network, batch, under), key, batch.batch_size, weights=weights
            )
        sequence, inputs = lived
        return sequence.split(call_on_tensors(network, inputs, key, sequence.batch_size, weights=weights))[1]

    def refuse_sequences(self, network: nn.Module, reason: str) -> None:
        """Raise LossError where a network would read sequences that this loss takes apart."""
        if self.carries_state and reads_sequences(network):
            raise LossError(
                f"{type(self).__name__} cannot use {type(network).__name__} with a memory along time: {reason}. Give "
                "it one without a memory, use another loss, or train on single steps with their stored states: with "
                "set_recurrent_mode(False)."
            )

    # ---- errors

    def unfit_step(self, what: str, shape: torch.Size, step: dict[str, Tensor]) -> LossError:
        """The error for rewards, flags and discounts that do not fit."""
        found = ", ".join(
            f"{quoted(self._paths[name])} {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
            for name, value in step.items()
        )
        return LossError(
            f"{type(self).__name__}: {what} are {list(shape)}, the batch has {found}. Reward, "
            f"end flags and discounts must be {[*shape[:-1], 1]}, and flags must be bool; nothing is broadcast."
        )


def _burn_in(mask: Tensor | None, batch_size: torch.Size) -> int:
    """How many first steps count in no sequence [*B, T], and at least as many as the mode in force says."""
    told = recurrent_burn_in()
    if mask is None or not torch.is_grad_enabled() or mask.numel() != batch_size.numel():
        return told
    counts = mask.reshape(-1, batch_size[-1]).any(0)
    return max(told, int(counts.to(torch.uint8).argmax()))  # 0 where no step counts


def _with_states(network: nn.Module, batch: TensorDictBase) -> TensorDictBase:
    """The batch with initial states where a network's own are absent: only the policy ran while it was collected."""
    absent = {key: spec for key, spec in carried_state(network).specs.items() if batch.get(key, None) is None}
    held = batch.copy() if absent else batch
    for key, spec in absent.items():
        held.set(key, torch.zeros(*batch.batch_size, *spec.shape, dtype=spec.dtype, device=batch.device))
    return held


def _last_of_run(mask: Tensor) -> Tensor:
    """True at valid steps [*B, T] behind which rows do not count: padding, whose observations nobody lived.

    Not at the other rows that do not count: those of a burn-in are followed by their true successors.
    """
    ends = torch.zeros_like(mask)
    ends[..., :-1] = mask[..., :-1] & ~mask[..., 1:]
    return ends
