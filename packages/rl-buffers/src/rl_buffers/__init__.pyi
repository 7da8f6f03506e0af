__version__: str
from .buffer import ReplayBuffer as ReplayBuffer
from .collate import stack_rows as stack_rows
from .native import doctor_report as doctor_report
from .native import native_state as native_state
from .samplers.random_sampler import RandomSampler as RandomSampler
from .samplers.without_replacement import SamplerWithoutReplacement as SamplerWithoutReplacement
from .storages.lazy_tensor import LazyTensorStorage as LazyTensorStorage
from .storages.list_storage import ListStorage as ListStorage
from .tensordict_buffer import TensorDictReplayBuffer as TensorDictReplayBuffer
from .writers.round_robin import RoundRobinWriter as RoundRobinWriter
from .writers.round_robin import TensorDictRoundRobinWriter as TensorDictRoundRobinWriter
