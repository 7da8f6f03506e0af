"""Specs: what observations, actions, rewards and end flags may be."""

from __future__ import annotations

from rl_core.specs.base import TensorSpec as TensorSpec
from rl_core.specs.binary import Binary as Binary
from rl_core.specs.bounded import Bounded as Bounded
from rl_core.specs.boxes import BinaryBox as BinaryBox
from rl_core.specs.boxes import Box as Box
from rl_core.specs.boxes import BoxList as BoxList
from rl_core.specs.boxes import CategoricalBox as CategoricalBox
from rl_core.specs.boxes import ContinuousBox as ContinuousBox
from rl_core.specs.categorical import Categorical as Categorical
from rl_core.specs.choice import Choice as Choice
from rl_core.specs.composite import Composite as Composite
from rl_core.specs.from_tensordict import make_composite_from_td as make_composite_from_td
from rl_core.specs.multi_categorical import MultiCategorical as MultiCategorical
from rl_core.specs.multi_one_hot import MultiOneHot as MultiOneHot
from rl_core.specs.non_tensor import NonTensor as NonTensor
from rl_core.specs.one_hot import OneHot as OneHot
from rl_core.specs.serialise import spec_from_dict as spec_from_dict
from rl_core.specs.serialise import spec_to_dict as spec_to_dict
from rl_core.specs.stacked import Stacked as Stacked
from rl_core.specs.stacked_composite import StackedComposite as StackedComposite
from rl_core.specs.stacking import stack_specs as stack_specs
from rl_core.specs.unbounded import Unbounded as Unbounded
