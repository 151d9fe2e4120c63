"""Trained weights and their gradients by the parameter names of the plain model."""

import torch

from hotlap.engine.build import BuiltRun
from hotlap.engine.step.passes import trained_tensors

NamedTensors = dict[str, torch.Tensor]


def trained_weights(built: BuiltRun) -> NamedTensors:
    """Return the tensors that are trained, by the names of the plain model's parameters."""
    return {name: weight.detach() for name, weight in trained_parameters(built).items()}


def trained_parameters(built: BuiltRun) -> NamedTensors:
    """Return the parameters that are trained, in the order of their names."""
    own = {**dict(built.model.named_parameters()), **built.weights}
    return {name: own[name] for name in sorted(own)}


def untrained_tensors(built: BuiltRun) -> NamedTensors:
    """Return the buffers, and the parameters that the optimizer has neither as they are nor as a
    copy."""
    trained = {id(each) for each in trained_tensors(built.optimizer)}
    own = {**dict(built.model.named_parameters()), **built.weights}
    found = {name: own[name].detach() for name in own if id(own[name]) not in trained}
    return {**found, **dict(built.model.named_buffers())}


def gradients(built: BuiltRun) -> NamedTensors:
    """Return the gradients that are there, by the names of the plain model's parameters."""
    own = {**dict(built.model.named_parameters()), **built.weights}
    return {name: own[name].grad for name in sorted(own) if own[name].grad is not None}
