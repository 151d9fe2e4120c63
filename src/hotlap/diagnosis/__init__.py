"""Why is it slow? Rules nominate, trials convict, and each cause carries its measured cost."""
