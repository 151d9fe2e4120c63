"""Roles of a trial's process in which the engine trains a recipe (of scripts: `attach.roles`)."""
