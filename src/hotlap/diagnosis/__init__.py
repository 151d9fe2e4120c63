"""`hotlap diagnose`: tries remedies for what rules suspect, and says what each cause costs in ms.

Rules are in `hotlap.rules`, trials in `hotlap.lab`, and what is printed in `hotlap.report`.
"""
