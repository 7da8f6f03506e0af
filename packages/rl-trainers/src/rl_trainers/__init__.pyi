__version__: str
from .checkpoint.checkpoint import Checkpoint as Checkpoint
from .checkpoint.checkpoint import CheckpointLoadResult as CheckpointLoadResult
from .checkpoint.rng import GlobalRNGState as GlobalRNGState
from .evaluate import evaluate as evaluate
from .loggers.csv_logger import CSVLogger as CSVLogger
from .loggers.factory import generate_exp_name as generate_exp_name
from .loggers.factory import get_logger as get_logger
from .loggers.tensorboard import TensorboardLogger as TensorboardLogger
from .metrics_file import read_metrics as read_metrics
from .plots import plot_learning_curve as plot_learning_curve
from .video import record_video as record_video
from .video import write_video as write_video
from .loop import TrainingRun as TrainingRun
from .metrics import MeanMetrics as MeanMetrics
from .metrics import episode_metrics as episode_metrics
from .progress import Progress as Progress
from .progress import summary_table as summary_table
