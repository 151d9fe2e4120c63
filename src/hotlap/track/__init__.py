"""What a run leaves behind: `run.json`, `metrics.jsonl`, and trackers that read them. No torch.

`recording.Recording` writes them, `runs.read_run` reads them back. Whoever shows a run (trackers,
comparisons, pages) reads these files: the training loop knows none of them.
"""
