__version__: str
from .gym.env import GymEnv as GymEnv
from .gym.env import GymWrapper as GymWrapper
from .custom.pendulum import PendulumEnv as PendulumEnv
from .gym.conversions import SpaceConversion as SpaceConversion
from .gym.conversions import register_gym_spec_conversion as register_gym_spec_conversion
from .gym.spaces import gym_to_spec as gym_to_spec
from .gym.spec_to_space import spec_to_space as spec_to_space
from .transforms.double_to_float import DoubleToFloat as DoubleToFloat
from .transforms.finite_check import FiniteTensorDictCheck as FiniteTensorDictCheck
from .transforms.init_tracker import InitTracker as InitTracker
from .transforms.observation_norm import ObservationNorm as ObservationNorm
from .transforms.primer import TensorDictPrimer as TensorDictPrimer
from .transforms.reward_scaling import RewardScaling as RewardScaling
from .transforms.reward_sum import RewardSum as RewardSum
from .transforms.step_counter import StepCounter as StepCounter
from .gym.publish import PublishedEnv as PublishedEnv
from .gym.publish import register_gym as register_gym
