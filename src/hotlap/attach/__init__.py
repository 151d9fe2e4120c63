"""Getting into a training script that nobody edited, by its environment alone.

The parent builds a command and an environment (`entry`), and may run the script under a plan
(`runner`). In the script's own process a `sitecustomize` waits for torch (`hook`), patches methods
on classes (`seams`), applies the plan (`apply`) and plays one role (`roles`). Trials are started
and judged by `hotlap.lab`; recipes, whose steps hotlap takes itself, are trained by
`hotlap.engine`.
"""
