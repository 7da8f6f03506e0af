__version__: str
from .aliases import EGreedyWrapper as EGreedyWrapper
from .aliases import NormalParamsWrapper as NormalParamsWrapper
from .distributions.base import PolicyDistribution as PolicyDistribution
from .distributions.categorical import Categorical as Categorical
from .distributions.delta import Delta as Delta
from .distributions.delta import TanhDelta as TanhDelta
from .distributions.gaussian import IndependentNormal as IndependentNormal
from .distributions.masked import MaskedCategorical as MaskedCategorical
from .distributions.masked import MaskedOneHotCategorical as MaskedOneHotCategorical
from .distributions.one_hot import OneHotCategorical as OneHotCategorical
from .distributions.tanh_normal import TanhNormal as TanhNormal
from .exploration.egreedy import EGreedyModule as EGreedyModule
from .networks.convnet import ConvNet as ConvNet
from .networks.convnet import SquashDims as SquashDims
from .networks.mlp import MLP as MLP
from .networks.normal_params import NormalParamExtractor as NormalParamExtractor
from .networks.normal_params import NormalParamsNet as NormalParamsNet
from .policies.actor import Actor as Actor
from .policies.actor_value import ActorValueOperator as ActorValueOperator
from .policies.base import PolicyModule as PolicyModule
from .policies.probabilistic_actor import ProbabilisticActor as ProbabilisticActor
from .policies.probabilistic_module import SafeProbabilisticModule as SafeProbabilisticModule
from .policies.probabilistic_sequential import (
    SafeProbabilisticTensorDictSequential as SafeProbabilisticTensorDictSequential,
)
from .policies.q_value import QValueActor as QValueActor
from .policies.q_value import QValueModule as QValueModule
from rl_core.random_policy import RandomPolicy as RandomPolicy
from .policies.safe_module import SafeModule as SafeModule
from .policies.sequential import SafeSequential as SafeSequential
from .policies.tanh_module import TanhModule as TanhModule
from .policies.value_operator import ValueOperator as ValueOperator
from .policies.build import build_actor as build_actor
