"""The base of every module here: keys in, keys out, callable on a TensorDict or on bare tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tensordict import TensorDict, is_tensor_collection
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import unravel_key_list
from typing_extensions import Self

from rl_core.errors import KeyMissingError, PolicyError
from rl_core.keys import Key, flat_name
from rl_modules.policies.reading import read_inputs
from rl_modules.policies.writing import write_outputs

__all__ = ["PolicyModule", "as_outputs"]


class PolicyModule(TensorDictModuleBase):
    """Reads ``in_keys``, computes, writes ``out_keys``.

    Two ways to call it have one meaning: ``module(td)`` reads and writes a TensorDict and returns it, while
    ``forward_tensors(*inputs)`` takes the inputs in the order of ``in_keys`` and returns a tuple in the order of
    ``out_keys``. ``module(*tensors)`` and ``module(observation=...)`` go through the second and return a tensor, or a
    tuple of several. A subclass defines :meth:`_compute`.

    A subclass that overrides ``forward``, and a module with forward hooks, is always run through a TensorDict, so that
    ``forward_tensors`` never skips what the user added.
    """

    takes_tensors: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "forward" in cls.__dict__ and "forward_tensors" not in cls.__dict__:
            cls.takes_tensors = False
            cls.forward_tensors = PolicyModule._through_container  # type: ignore[method-assign]

    def _set_keys(self, in_keys: Sequence[Key], out_keys: Sequence[Key]) -> None:
        self.in_keys = list(in_keys)  # type: ignore[arg-type]  # tensordict types keys as tuples of one name
        self.out_keys = list(out_keys)  # type: ignore[arg-type]
        self._kept: tuple[int, ...] | None = None

    def _compute(self, *inputs: Any) -> tuple[Any, ...]:
        """One output for each of ``out_keys_source``."""
        raise NotImplementedError

    def forward(self, tensordict: Any = None, *inputs: Any, tensordict_out: Any = None, **named: Any) -> Any:
        """Run on a TensorDict, or on bare tensors.

        Args:
            tensordict: the TensorDict, or the first of the bare tensors.
            *inputs: further bare tensors, in the order of ``in_keys``.
            tensordict_out: where to write instead of ``tensordict``.
            **named: bare tensors by the flat name of their key (``next_observation``).

        Returns:
            The TensorDict that was written to; or one output, or a tuple of outputs in the order of ``out_keys``.

        Raises:
            KeyMissingError: if an input is missing.
            PolicyError: if outputs do not fit out_keys or the batch size.
        """
        if type(tensordict) is TensorDict or is_tensor_collection(tensordict):
            if inputs or named:
                raise TypeError(f"{type(self).__name__} takes one TensorDict, or tensors; it got both.")
            return self._run(tensordict, tensordict if tensordict_out is None else tensordict_out)
        outputs = self._compute(*self._bare_inputs(tensordict, inputs, named))
        kept = self._kept
        if kept is not None:
            outputs = tuple(outputs[index] for index in kept)
        return outputs[0] if len(outputs) == 1 else outputs

    def forward_tensors(self, *inputs: Any) -> tuple[Any, ...]:
        """Run on bare tensors.

        Args:
            *inputs: one value for each of ``in_keys``.

        Returns:
            One value for each of ``out_keys``, as ``module(td)`` would write under the exploration type in force.
        """
        if self._forward_hooks or self._forward_pre_hooks:
            return self._through_container(*inputs)
        outputs = self._compute(*inputs)
        kept = self._kept
        return outputs if kept is None else tuple(outputs[index] for index in kept)

    def _run(self, tensordict: Any, target: Any) -> Any:
        outputs = self._compute(*read_inputs(tensordict, self.in_keys, self))
        self._write(target, outputs)
        return target

    def _write(self, target: Any, outputs: Sequence[Any]) -> None:
        kept = self._kept
        if kept is not None:
            outputs = [outputs[index] for index in kept]
        write_outputs(target, self.out_keys, outputs, self)

    def _through_container(self, *inputs: Any) -> tuple[Any, ...]:
        data = TensorDict(dict(zip(self.in_keys, inputs, strict=True)), batch_size=[])
        data = self(data)
        return tuple(read_inputs(data, self.out_keys, self))

    def _bare_inputs(self, first: Any, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> list[Any]:
        keys = self.in_keys
        given = list(inputs) if first is None else [first, *inputs]
        if not named:
            if len(given) == len(keys):
                return given
            raise TypeError(
                f"{type(self).__name__} got {len(given)} tensors for its in_keys {keys}. "
                f"Pass one for each, or a TensorDict."
            )
        left = {flat_name(key): key for key in keys[len(given) :]}
        unknown = [name for name in named if name not in left]
        missing = [name for name in left if name not in named]
        if unknown:
            raise TypeError(f"{type(self).__name__} has no input {unknown}; its in_keys are {keys}.")
        if missing:
            raise KeyMissingError(f"{type(self).__name__} needs {missing}; got {list(named)}.")
        return [*given, *(named[name] for name in left)]

    def select_out_keys(self, *out_keys: Any) -> Self:
        """Return and write only some of the outputs; the others are computed and dropped.

        Args:
            *out_keys: the keys to keep, in the order wanted.

        Returns:
            The module itself.

        Raises:
            ValueError: if a key is not an output.
        """
        wanted = unravel_key_list(list(out_keys))
        source = self.out_keys_source
        unknown = [key for key in wanted if key not in source]
        if unknown:
            raise ValueError(f"{type(self).__name__} does not write {unknown}; its out_keys are {source}.")
        self._out_keys_apparent = wanted
        self._kept = tuple(source.index(key) for key in wanted)
        return self

    def reset_out_keys(self) -> Self:
        """Write all outputs again."""
        self._out_keys_apparent = self.out_keys_source
        self._kept = None
        return self


def as_outputs(result: Any, keys: Sequence[Key], producer: object) -> Sequence[Any]:
    """What a network returned, as one value for each key.

    Args:
        result: a tensor, a tuple, a dict or TensorDict that holds the keys, or None for no output.
        keys: the out keys.
        producer: the network, for the message.

    Raises:
        PolicyError: if the counts differ.
    """
    if isinstance(result, tuple):
        outputs: Sequence[Any] = result
    elif result is None:
        outputs = ()
    elif (isinstance(result, dict) or is_tensor_collection(result)) and all(key in result for key in keys):
        outputs = [result[key] if isinstance(result, dict) else result.get(key) for key in keys]
    else:
        outputs = (result,)
    if len(outputs) != len(keys):
        raise _output_mismatch(len(outputs), keys, producer)
    return outputs


def _output_mismatch(count: int, keys: Sequence[Key], producer: object) -> PolicyError:
    """The error for a network whose outputs do not fit the out keys."""
    name = getattr(producer, "__name__", type(producer).__name__)
    hint = " NormalParamExtractor() as the last layer splits one output into loc and scale." if "scale" in keys else ""
    return PolicyError(
        f"{name} returned {count} output(s) for out_keys {list(keys)}. Give one key for each output.{hint}"
    )
