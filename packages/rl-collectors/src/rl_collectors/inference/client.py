"""``PolicyClient``: a policy whose calls are answered by a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor

from rl_collectors.inference.requests import PolicyFacts, Reply
from rl_collectors.process.slots import leaves_of
from rl_core.errors import CollectorError, KeyMissingError
from rl_core.keys import Key
from rl_core.policy_state import CarriedState, StateCarrier

__all__ = ["Link", "Pending", "PolicyClient", "PolicyClientModule", "PolicyFuture", "TensorClient"]


class Pending(Protocol):
    """A reply that is due."""

    def wait(self, timeout: float | None = None) -> Reply | None:
        """The reply, or None where none came within so many seconds."""
        ...


class Link(Protocol):
    """The way to a server."""

    def submit(self, tensors: dict[Key, Tensor], rows: int) -> Pending:
        """Send tensors ``[rows, ...]``."""
        ...


class PolicyFuture:
    """The answer to one request, which may still be on its way."""

    def __init__(self, client: PolicyClient, tensordict: TensorDictBase, pending: Pending) -> None:
        self._client, self._tensordict, self._pending = client, tensordict, pending
        self._written = False

    def done(self) -> bool:
        """Whether the answer, or an error, has come."""
        return self._pending.wait(0.0) is not None

    def result(self, timeout: float | None = None) -> TensorDictBase:
        """The TensorDict that was submitted, with what the policy wrote.

        Args:
            timeout: seconds to wait; default: the client's.

        Raises:
            CollectorError: the policy raised, the server has ended, or the answer does not come in time.
        """
        if not self._written:
            reply = self._client.await_reply(self._pending, timeout)
            self._client.write(self._tensordict, reply)
            self._written = True
        return self._tensordict


class PolicyClient(StateCarrier):
    """Asks a server to act: ``client(td) -> td``, as the policy itself, from any thread.

    Made by :meth:`InferenceServer.client`. What can be pickled reaches the server from other processes of the machine.
    State that the policy carries from step to step travels in the TensorDict, as with the policy itself.

    Args:
        link: the way to the server.
        facts: what the policy reads and writes.
        version_key: where the version of the weights that acted is written, int64 ``[*B]``; None: nowhere.
        timeout: seconds that an answer may take.

    Example:
        >>> from rl_collectors import InferenceServer
        >>> from rl_core.testing.collector_kit import constant_policy
        >>> from tensordict import TensorDict
        >>> with InferenceServer(constant_policy(0.5)) as server:
        ...     client = server.client()
        ...     client(TensorDict({"observation": torch.zeros(3, 1)}, [3]))["action"].flatten().tolist()
        [0.5, 0.5, 0.5]
    """

    def __init__(self, link: Link, facts: PolicyFacts, version_key: Key | None = None, timeout: float = 60.0) -> None:
        self.link, self.facts, self.version_key, self.timeout = link, facts, version_key, timeout
        self.version = 0
        """Of the weights behind the answer that came last."""

    @property
    def in_keys(self) -> list[Key] | None:
        """What the policy reads; None where it does not say."""
        return self.facts.in_keys

    @property
    def out_keys(self) -> list[Key] | None:
        """What is written; None where the policy does not say."""
        keys = self.facts.out_keys
        return keys if keys is None or self.version_key is None else [*keys, self.version_key]

    def carried_state(self) -> CarriedState:
        """The state that the policy carries."""
        return self.facts.carried

    def __deepcopy__(self, memo: dict[int, Any]) -> PolicyClient:
        return self  # a copy of a policy would ask the same server

    # ---------------------------------------------------------------- asking
    def __call__(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Act on a TensorDict of any batch size; what the policy writes is added to it.

        Raises:
            KeyMissingError: it lacks what the policy reads.
            CollectorError: the policy raised, the server has ended, or the answer does not come in time.
        """
        return self.submit(tensordict).result()

    def submit(self, tensordict: TensorDictBase) -> PolicyFuture:
        """Ask without waiting: ``future.result()`` gives what a call would have given.

        The answers to the requests of one thread come in their order.
        """
        dims = tensordict.batch_dims
        return PolicyFuture(self, tensordict, self.send(self._inputs(tensordict), dims, tensordict.batch_size.numel()))

    def _inputs(self, tensordict: TensorDictBase) -> dict[Key, Tensor]:
        if self.facts.in_keys is None:
            parts = leaves_of(tensordict)
            if parts.rest:
                raise CollectorError(
                    f"the policy does not say what it reads, and {', '.join(map(repr, parts.rest))} cannot be sent; "
                    "give the policy in_keys and out_keys"
                )
            return parts.dense
        inputs: dict[Key, Tensor] = {}
        for key in self.facts.in_keys:
            value = tensordict.get(key, None)
            if not isinstance(value, Tensor):
                raise KeyMissingError(
                    f"the policy reads {key!r}, of which the request has {'none' if value is None else type(value)}; "
                    f"its entries are {', '.join(map(repr, tensordict.keys(True, True)))}"
                )
            inputs[key] = value
        return inputs

    def send(self, inputs: dict[Key, Tensor], dims: int, rows: int) -> Pending:
        """Send tensors whose first ``dims`` dimensions are the batch of ``rows``."""
        if dims != 1:
            inputs = {key: value.reshape((rows, *value.shape[dims:])) for key, value in inputs.items()}
        return self.link.submit({key: value.detach() for key, value in inputs.items()}, rows)

    # ---------------------------------------------------------------- answers
    def await_reply(self, pending: Pending, timeout: float | None = None) -> Reply:
        """The reply, or what went wrong as an error."""
        limit = self.timeout if timeout is None else timeout
        reply = pending.wait(limit)
        if reply is None:
            raise CollectorError(
                f"the inference server did not answer within {limit:g} s: its policy takes longer than that, or hangs. "
                "If so long is right, pass client(timeout=...)"
            )
        reply.check()
        self.version = reply.version
        return reply

    def write(self, tensordict: TensorDictBase, reply: Reply) -> None:
        """Add the outputs."""
        size = tensordict.batch_size
        for key, value in reply.outputs.items():
            tensordict.set(key, value if len(size) == 1 else value.reshape((*size, *value.shape[1:])))
        if self.version_key is not None:
            tensordict.set(self.version_key, torch.full(size, reply.version, device=tensordict.device))

    def on_tensors(self, batch_dims: int) -> PolicyClient:
        """A client that can also be called on bare tensors ``[*B, ...]``, of so many batch dimensions."""
        if self.facts.in_keys is None or self.facts.out_keys is None:
            return self
        return TensorClient(self.link, self.facts, self.version_key, self.timeout, batch_dims)


class TensorClient(PolicyClient):
    """A client for environments on columns.

    Args:
        link: the way to the server.
        facts: what the policy reads and writes.
        version_key: see :class:`PolicyClient`.
        timeout: seconds that an answer may take.
        batch_dims: batch dimensions of the environment.
    """

    def __init__(
        self, link: Link, facts: PolicyFacts, version_key: Key | None, timeout: float, batch_dims: int
    ) -> None:
        super().__init__(link, facts, version_key, timeout)
        self.batch_dims = batch_dims

    def forward_tensors(self, *inputs: Tensor) -> Sequence[Tensor]:
        """One output for each of ``out_keys``."""
        assert self.facts.in_keys is not None and self.facts.out_keys is not None
        size = inputs[0].shape[: self.batch_dims] if inputs else torch.Size([])
        given = dict(zip(self.facts.in_keys, inputs, strict=True))
        reply = self.await_reply(self.send(given, len(size), size.numel()))
        outputs = [reply.outputs[key].reshape((*size, *reply.outputs[key].shape[1:])) for key in self.facts.out_keys]
        if self.version_key is not None:
            outputs.append(torch.full(size, reply.version))
        return outputs


class PolicyClientModule(TensorDictModuleBase, StateCarrier):
    """A client as a module, to be put among others (``TensorDictSequential``); it has no parameters.

    Args:
        client: the client.
        in_keys: what is read; default: what the policy reads.
        out_keys: what is written of the policy's outputs; default: all.

    Raises:
        CollectorError: the policy does not say its keys, and none are given.
    """

    def __init__(
        self, client: PolicyClient, *, in_keys: Sequence[Key] | None = None, out_keys: Sequence[Key] | None = None
    ) -> None:
        super().__init__()
        read = client.in_keys if in_keys is None else list(in_keys)
        written = client.out_keys if out_keys is None else list(out_keys)
        if read is None or written is None:
            raise CollectorError("the served policy does not say what it reads and writes; pass in_keys and out_keys")
        self.client = client
        self.in_keys, self.out_keys = cast("Any", read), cast("Any", written)

    def carried_state(self) -> CarriedState:
        """The state that the policy carries."""
        return self.client.carried_state()

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Ask the server."""
        answer = self.client(tensordict.select(*self.in_keys))
        for key in self.out_keys:
            tensordict.set(key, answer.get(key))
        return tensordict
