"""A JSON document of hotlap as one self-contained HTML page: no script, no request. No torch."""
