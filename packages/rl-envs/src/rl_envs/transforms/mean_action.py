"""``MeanActionSelector``: between an environment of points and a policy of Gaussian beliefs."""

from __future__ import annotations

from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core import Composite, Transform, Unbounded
from rl_core.errors import KeyMissingError
from rl_core.keys import Key, as_key, as_path

__all__ = ["MeanActionSelector"]


class MeanActionSelector(Transform):
    """Writes an observation x as a belief of mean x and covariance zero, and acts with the mean of the policy's.

    ``observation`` becomes a group: ``("observation", "mean")`` ``[*B, F]`` and ``("observation", "var")``
    ``[*B, F, F]``. An action that is a group gives its "mean" to the environment; a plain one passes.

    (Deisenroth, Rasmussen 2011, "PILCO", section 2: policies of uncertain states.)

    Args:
        observation_key: the observation, a vector.
        action_key: the action.
    """

    def __init__(self, observation_key: Key = "observation", action_key: Key = "action") -> None:
        super().__init__(in_keys=[as_key(as_path(observation_key))], in_keys_inv=[as_key(as_path(action_key))])

    def _call(self, tensordict: TensorDictBase) -> TensorDictBase:
        key = self.in_keys[0]
        mean = tensordict.get(key, None)
        if mean is None:
            if self._missing_ok:
                return tensordict
            raise KeyMissingError(self._missing(key, tensordict))
        if isinstance(mean, Tensor):
            var = mean.new_zeros(*mean.shape, mean.shape[-1])
            tensordict.set(key, TensorDict({"mean": mean, "var": var}, batch_size=tensordict.batch_size))
        return tensordict

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        key = self.in_keys_inv[0]
        action = tensordict.get(key, None)
        if action is None:
            raise KeyMissingError(self._missing(key, tensordict))
        if isinstance(action, TensorDictBase):
            mean = action.get("mean", None)
            if mean is None:
                raise KeyMissingError(
                    f"MeanActionSelector needs {(*as_path(key), 'mean')!r}; the policy wrote "
                    f"{list(action.keys())} there"
                )
            tensordict.set(key, mean)
        return tensordict

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """A mean and a covariance."""
        key = self.in_keys[0]
        leaf = observation_spec.get(key, None)
        if leaf is None or leaf.ndim <= observation_spec.ndim:
            raise KeyMissingError(
                f"MeanActionSelector needs the observation {key!r}, a vector; the environment has "
                f"{list(observation_spec.keys(True, True))}. Name it with observation_key=..."
            )
        var = Unbounded(shape=(*leaf.shape, leaf.shape[-1]), dtype=leaf.dtype, device=leaf.device)
        observation_spec.set(key, Composite({"mean": leaf, "var": var}, shape=observation_spec.shape))
        return observation_spec
