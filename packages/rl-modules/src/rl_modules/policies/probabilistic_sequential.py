"""A chain of modules that ends with a distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensordict import TensorDict
from tensordict.nn import InteractionType as ExplorationType
from torch import Size, Tensor, nn
from torch.distributions import Distribution

from rl_core.keys import Key
from rl_modules.policies.probabilistic_module import SafeProbabilisticModule, interaction_type_of
from rl_modules.policies.reading import read_inputs
from rl_modules.policies.sequential import SafeSequential

__all__ = ["SafeProbabilisticTensorDictSequential"]


class SafeProbabilisticTensorDictSequential(SafeSequential):
    """A chain whose last module is a :class:`SafeProbabilisticModule`, with access to its distribution.

    Args:
        *modules: the modules that compute the parameters, then the probabilistic module. A chain of
            this kind in the last place is unpacked.

    Raises:
        TypeError: if the last module is not probabilistic.
    """

    def __init__(self, *modules: Callable[..., Any]) -> None:
        if modules and isinstance(modules[-1], SafeProbabilisticTensorDictSequential):
            modules = (*modules[:-1], *modules[-1])
        if not modules or not isinstance(modules[-1], SafeProbabilisticModule):
            last = type(modules[-1]).__name__ if modules else "nothing"
            raise TypeError(f"The last module of {type(self).__name__} must be a SafeProbabilisticModule; got {last}.")
        super().__init__(*modules)

    @property
    def _head(self) -> SafeProbabilisticModule:
        head: SafeProbabilisticModule = self._current_plan().links[-1].module
        return head

    @property
    def det_part(self) -> SafeSequential:
        """The modules that compute the parameters, as a chain."""
        return SafeSequential(*list(self.module)[:-1])

    def _parameters_of(self, tensordict: Any) -> list[Any]:
        """The distribution's parameters, computed from a TensorDict without writing into it."""
        plan = self._current_plan()
        if plan.runs_on_tensors():
            return self._parameters_from(read_inputs(tensordict, self.in_keys, self))
        data = self._run_modules(tensordict.copy(), list(self.module)[:-1])
        return read_inputs(data, self._head.in_keys, self._head)

    def _parameters_from(self, inputs: Sequence[Any]) -> list[Any]:
        plan = self._current_plan()
        values: dict[Key, Any] = dict(zip(self.in_keys, inputs, strict=True))
        if plan.runs_on_tensors():
            plan.run(values, plan.links[:-1])
            return [values[key] for key in plan.links[-1].module.in_keys]
        return self._parameters_of(TensorDict(values, batch_size=[]))

    def get_dist_params(self, tensordict: Any) -> Any:
        """A shallow copy of a TensorDict with the distribution's parameters added."""
        parameters = self._parameters_of(tensordict)
        return tensordict.copy().update(dict(zip(self._head.in_keys, parameters, strict=True)))

    def get_dist(self, tensordict: Any) -> Distribution:
        """The distribution for the inputs that a TensorDict holds; nothing is written."""
        return self._head.build_dist(*self._parameters_of(tensordict))

    def get_dist_tensors(self, *inputs: Tensor) -> Distribution:
        """The distribution for bare inputs, in the order of ``in_keys``."""
        return self._head.build_dist(*self._parameters_from(inputs))

    def build_dist_from_params(self, tensordict: Any) -> Distribution:
        """The distribution whose parameters a TensorDict holds already."""
        return self._head.get_dist(tensordict)

    def log_prob(self, tensordict: Any, *, dist: Distribution | None = None) -> Tensor:
        """Log-probability ``[*B]`` of the value that a TensorDict holds, under the distribution of its inputs.

        Args:
            tensordict: holds the inputs and the value.
            dist: the distribution, if it is known already.
        """
        return self._head.log_prob(tensordict, dist=self.get_dist(tensordict) if dist is None else dist)

    @property
    def log_prob_key(self) -> Key:
        """Key of the log-probability."""
        return self._head.log_prob_key

    @property
    def log_prob_keys(self) -> list[Key]:
        """Key of the log-probability, as a list."""
        return self._head.log_prob_keys

    @property
    def dist_sample_keys(self) -> list[Key]:
        """Key of the value, as a list."""
        return self._head.dist_sample_keys

    @property
    def dist_params_keys(self) -> list[Key]:
        """Keys of the distribution's parameters."""
        return self._head.dist_params_keys

    @property
    def default_interaction_type(self) -> ExplorationType:
        """The exploration type outside of a context."""
        return self._head.default_interaction_type

    @property
    def num_samples(self) -> Size | None:
        """Leading dims of each draw."""
        return self._head.num_samples

    def _run(self, tensordict: Any, target: Any) -> Any:
        plan = self._current_plan()
        head: SafeProbabilisticModule = plan.links[-1].module
        if not plan.widens or interaction_type_of(head) is not ExplorationType.RANDOM:
            return self._run_plan(plan, tensordict, target)
        parameters = self._parameters_of(tensordict)
        data = self._run_modules(tensordict.copy(), list(self.module)[:-1])
        wide = data.expand(Size((*(head.num_samples or ()), *data.batch_size)))
        outputs = head._compute(*parameters)
        wide.update(dict(zip(head.out_keys_source, outputs, strict=True)))
        if self._kept is None:
            return wide
        dropped = [key for key in self.out_keys_source if key not in self.out_keys and key not in self.in_keys]
        return wide.exclude(*dropped)

    def __getitem__(self, index: int | slice) -> Any:
        """One module, or a chain of some of them, probabilistic where the last is in it."""
        if isinstance(index, slice):
            chosen: list[nn.Module] = list(self.module)[index]
            kind = SafeProbabilisticTensorDictSequential if chosen and chosen[-1] is self._head else SafeSequential
            return kind(*chosen)
        return self.module[index]
