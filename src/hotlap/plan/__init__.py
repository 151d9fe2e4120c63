"""Plans: which techniques a run uses, with their options, and plan files. No torch in here."""

from hotlap.plan.record import Option, Plan

__all__ = ["Option", "Plan"]
