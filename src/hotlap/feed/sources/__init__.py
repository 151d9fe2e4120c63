"""Sources give the micro-batches of each step, epoch after epoch, of any kind of data set."""
