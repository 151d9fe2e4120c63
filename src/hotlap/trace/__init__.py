"""What a run does, as its own process records it: times of phases, lines, events and memory.

`hotlap.attach.roles` and `hotlap.engine.roles` feed the recorders; the schemas hold what was
recorded. The user's source is searched here, too, for what stands at a line (`statements`, `loops`,
`liveness`, `rebinding`). What a trace means is said by `hotlap.rules` and `hotlap.diagnosis`.
"""
