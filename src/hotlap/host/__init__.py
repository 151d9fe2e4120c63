"""The machine: facts, load and speed, memory shared by processes, files kept. No torch in here.

Facts are plain data (`Host`), so they can be faked. `hotlap.host.ceilings` measures in a process of
its own.
"""
