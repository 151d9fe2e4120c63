"""Experiments on a script: isolated trials, turn-taking races, their statistics, and verdicts."""
