"""The specs of a module's outputs, and projection onto them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_core.keys import Key
from rl_core.specs import Composite, TensorSpec

__all__ = ["leaf_specs", "project", "spec_tree"]


def leaf_specs(spec: TensorSpec | None, out_keys: Sequence[Key], owner: str, *, safe: bool) -> dict[Key, TensorSpec]:
    """The spec of each output that has one.

    Args:
        spec: a leaf, which describes the first output; a Composite with entries for some outputs; or None.
        out_keys: the module's outputs.
        owner: name of the module, for the message.
        safe: whether outputs are to be projected, so that a spec is needed.

    Raises:
        ValueError: if a Composite has an entry for none of the outputs, or safe is asked for without any spec.
    """
    found: dict[Key, TensorSpec] = {}
    if isinstance(spec, Composite):
        present = {key: leaf for key, leaf in spec.items(True, True) if leaf is not None}
        found = {key: present[key] for key in out_keys if key in present}
        if present and not found:
            raise ValueError(
                f"{owner} got a Composite spec with {sorted(present, key=str)}, none of which is among its out_keys "
                f"{list(out_keys)}. Rename the out_keys, or pass the entry itself."
            )
    elif spec is not None and out_keys:
        found = {out_keys[0]: spec}
    if safe and not found:
        raise ValueError(f"{owner}(safe=True) projects its outputs onto a spec and needs spec=.")
    return found


def spec_tree(specs: dict[Key, TensorSpec]) -> Composite | None:
    """The specs as one Composite without batch dims."""
    if not specs:
        return None
    tree = Composite()
    for key, leaf in specs.items():
        tree[key] = leaf
    return tree


def project(specs: dict[Key, TensorSpec], keys: Sequence[Key], values: Sequence[Any]) -> tuple[Any, ...]:
    """The values, each projected onto its key's spec if it has one and the value is illegal."""
    projected = []
    for key, value in zip(keys, values, strict=True):
        spec = specs.get(key)
        if spec is not None:
            spec = spec.to(value.device)
            if not spec.is_in(value):
                value = spec.project(value)
        projected.append(value)
    return tuple(projected)
