"""What an unedited script's process does for hotlap: a session, and a part for each role.

`start` in the folder above chooses the parts. The same roles of recipes are in
`hotlap.engine.roles`.
"""
