"""Host: where training is executed, as facts that can be faked. No torch in here.

`hotlap.host.ceilings` measures what the machine can do; this package only asks the system.
"""
