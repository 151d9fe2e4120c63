"""Plan: how training is executed. `hotlap.plan.file` keeps it. No torch in here."""

from hotlap.plan.record import Option, Plan

__all__ = ["Option", "Plan"]
