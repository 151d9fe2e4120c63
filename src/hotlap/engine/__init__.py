"""hotlap's own training engine: makes a run of a `Task` under a `Plan`, takes its steps, evaluates
it, saves and resumes it. Unedited scripts are run by `hotlap.attach`.
"""
