"""Plan: how training is executed, and the file it is kept in. No torch in here."""

from hotlap.plan.file import MeasuredOn, PlanFile, PlanVerdict, Speedup
from hotlap.plan.record import Option, Plan

__all__ = ["MeasuredOn", "Option", "Plan", "PlanFile", "PlanVerdict", "Speedup"]
