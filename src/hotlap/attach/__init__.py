"""Getting into a training script that nobody edited, by its environment alone.

The parent builds a command and an environment (`entry`). In the script's own process a
`sitecustomize` waits for torch (`hook`), patches methods on classes (`seams`), applies the plan
(`apply`) and plays one role: run, observe, race, verify, reference or own_place.
"""
