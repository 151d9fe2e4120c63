"""What measured processes and their parent share: messages, turns, and checks of single updates.

Both `hotlap.attach` and `hotlap.engine` use it inside a process, for scripts and for recipes: the
socket, digests, followed updates and gradients, comparisons of repeated steps. The roles
themselves are there; how a parent starts, races and judges trials is in `hotlap.lab`.
"""
