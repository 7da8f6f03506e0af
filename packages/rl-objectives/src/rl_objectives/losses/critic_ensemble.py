"""CriticEnsemble: several critics as one network, evaluated together where their architecture allows it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rl_core.errors import LossError, SpecError
from rl_core.evaluation_mode import evaluation_mode
from rl_core.keys import Key, as_key
from rl_core.losses.ensembles import Stackable, StackedNetwork
from rl_core.losses.networks import call_on_tensors, check_keyed
from rl_core.policy import row_policy

__all__ = ["CriticEnsemble", "redrawn"]

Critics = nn.Module | Sequence[nn.Module]


class CriticEnsemble(nn.Module):
    """Critics with a common output: one call gives the values of all of them, ``[N, *B, ...]``.

    Made of one network, it holds ``count`` copies of it: the first with the network's own weights, the others drawn
    anew (see :func:`redrawn`). Copies that can be stacked (an ``MLP``) run as one batched network; any other critics
    run one after the other. Made of a list, it holds the networks of the list.

    Args:
        critics: a module with ``in_keys`` and ``out_keys``, or several. A network that is an ensemble already (its
            ``module`` is a :class:`~rl_core.losses.ensembles.StackedNetwork`) is taken as it is.
        count: number of copies of a single module.
        owner: the loss, for errors.
        name: what the loss calls the network, for errors.

    Raises:
        SpecError: a critic has no keys, is lazy, or is listed twice.
    """

    def __init__(self, critics: Critics, count: int, owner: str, name: str) -> None:
        super().__init__()
        given = list(critics) if isinstance(critics, (Sequence, nn.ModuleList)) else [critics]
        for critic in given:
            check_keyed(critic, owner, name)
        if not given or count < 1:
            raise SpecError(f"{owner} needs at least one {name}; got {len(given)} networks and a count of {count}")
        if len({id(critic) for critic in given}) < len(given):
            raise SpecError(f"{owner}: {name} lists one network twice. Give one network and a number of copies.")
        stack: nn.Module | None = given[0] if len(given) == 1 and _stack_of(given[0]) is not None else None
        members = given
        if stack is None and len(given) == 1 and count > 1:
            members = _copies(given[0], count, owner, name)
            stack = _batched(members)
        self.stack = stack
        self.members = None if stack is not None else nn.ModuleList(members)
        inner = None if stack is None else _stack_of(stack)
        self.num_copies: int = len(members) if inner is None else inner.num_copies
        self._evaluates = False

    @property
    def in_keys(self) -> list[Key]:
        """What any of the critics reads."""
        return list(dict.fromkeys(as_key(key) for critic in self.critics() for key in critic.in_keys))  # type: ignore[union-attr]

    @property
    def out_keys(self) -> list[Key]:
        """What the first of the critics writes."""
        return [as_key(key) for key in self.critics()[0].out_keys]  # type: ignore[union-attr]

    def critics(self) -> list[nn.Module]:
        """The networks that are called: one that stands for all, or each."""
        if self.stack is not None:
            return [self.stack]
        assert self.members is not None
        return list(self.members)

    def forward(
        self, inputs: Sequence[Sequence[Tensor]], out_key: Key, batch_size: Sequence[int], first: int | None = None
    ) -> Tensor:
        """The values of all critics, or of the first ones.

        Args:
            inputs: for each of :meth:`critics` one tensor per in_key, ``[*B, ...]``.
            out_key: the output that is wanted.
            batch_size: ``[*B]``.
            first: ask only so many critics.

        Returns:
            ``[N, *B, ...]``.

        Raises:
            KeyMissingError: a critic does not write ``out_key``.
            LossError: the critics' outputs differ in shape.
        """
        if not self._evaluates:
            return self._values(inputs, out_key, batch_size, first)
        # Only here, since compiled code cannot list the parameters of a module whose mode it has changed.
        with evaluation_mode(self):
            return self._values(inputs, out_key, batch_size, first)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, calls are made in evaluation mode: normalisation by running moments, which stay as they are."""
        self._evaluates = True
        try:
            yield
        finally:
            self._evaluates = False

    def _values(
        self, inputs: Sequence[Sequence[Tensor]], out_key: Key, batch_size: Sequence[int], first: int | None
    ) -> Tensor:
        if self.stack is not None:
            return self._stacked_values(inputs[0], out_key, batch_size, first)
        members = list(zip(self.critics(), inputs, strict=True))[:first]
        values = [call_on_tensors(critic, given, out_key, batch_size) for critic, given in members]
        shapes = [list(value.shape) for value in values]
        if any(shape != shapes[0] for shape in shapes):
            raise LossError(f"the critics' {out_key!r} must have one shape; got {shapes}")
        return values[0].unsqueeze(0) if len(values) == 1 else torch.stack(values)

    def _stacked_values(
        self, inputs: Sequence[Tensor], out_key: Key, batch_size: Sequence[int], first: int | None
    ) -> Tensor:
        assert self.stack is not None
        if first is None or torch.compiler.is_compiling():  # compiled code cannot follow the switch below
            values = call_on_tensors(self.stack, inputs, out_key, batch_size)
            return values if first is None else values[:first]
        network = self.stack._modules["module"]
        assert isinstance(network, StackedNetwork)
        network.active = first
        try:
            return call_on_tensors(self.stack, inputs, out_key, batch_size)
        finally:
            network.active = None


@torch.no_grad()
def redrawn(network: nn.Module) -> nn.Module:
    """A deep copy with weights of its own, drawn as those of the network were as far as that can be known.

    Each layer is drawn by its ``reset_parameters``, then each tensor is scaled to the root mean square that it has in
    the given network: a small last layer stays small. Tensors of several numbers that are all the same keep it (ones),
    and zeros stay zero.
    A tensor of a layer without ``reset_parameters`` is drawn from a normal distribution with its mean and deviation.

    Args:
        network: it is left alone.

    Returns:
        The copy.
    """
    twin = copy.deepcopy(network)
    for module, given in zip(twin.modules(), network.modules(), strict=True):
        reset = getattr(module, "reset_parameters", None)
        own = dict(module.named_parameters(recurse=False))
        if not own:
            continue
        if callable(reset):
            reset()
        for name, weight in own.items():
            _follow(weight, given.get_parameter(name), drawn=callable(reset))
    return twin


def _follow(weight: Tensor, given: Tensor, *, drawn: bool) -> None:
    """Give a weight the spread of another one, in place."""
    if drawn and given.numel() == 1 and bool(given != 0):
        return  # one number tells nothing of its distribution
    if given.numel() == 0 or bool((given == given.flatten()[0]).all()):
        weight.copy_(given)
    elif drawn:
        size, wanted = weight.square().mean().sqrt(), given.square().mean().sqrt()
        weight.mul_(torch.where(size > 0, wanted / size, torch.zeros_like(size)))
    else:
        weight.normal_().mul_(given.std()).add_(given.mean())


def _copies(critic: nn.Module, count: int, owner: str, name: str) -> list[nn.Module]:
    for key, parameter in critic.named_parameters():
        if is_lazy(parameter):
            raise SpecError(
                f"{owner}: {name} has the lazy parameter {key!r}, whose shape is unknown: it cannot be copied. Call "
                "the network once on a batch before building the loss."
            )
    return [copy.deepcopy(critic), *(redrawn(critic) for _ in range(count - 1))]


def _inner(critic: nn.Module) -> nn.Module | None:
    """The network inside a keyed module that can be called on bare tensors."""
    inner = critic._modules.get("module") if isinstance(critic, TensorDictModuleBase) else None
    return inner if inner is not None and row_policy(critic) is not None else None


def _stack_of(critic: nn.Module) -> StackedNetwork | None:
    inner = _inner(critic)
    return inner if isinstance(inner, StackedNetwork) else None


def _batched(critics: Sequence[nn.Module]) -> nn.Module | None:
    """The first critic with the stacked networks of all of them inside; None where they cannot be stacked."""
    networks = [_inner(critic) for critic in critics]
    first = networks[0]
    if not isinstance(first, Stackable) or len(list(critics[0].parameters())) != len(list(first.parameters())):
        return None
    stacked = first.stacked(networks)
    if stacked is None:
        return None
    keyed = critics[0]
    keyed.module = stacked
    return keyed
