"""What is learned: a recipe's `Task`, or the `TaskFacts` that a run showed while it was watched.

A script that nobody edited has no `Task`; what techniques and rules need to know of it is collected
while it runs and handed on as `TaskFacts`.
"""

from hotlap.task.data_sets import is_stream
from hotlap.task.facts import GradientSums, LoaderFacts, OptimizerFacts, TaskFacts
from hotlap.task.task import PER, Task

__all__ = ["PER", "GradientSums", "LoaderFacts", "OptimizerFacts", "Task", "TaskFacts", "is_stream"]
