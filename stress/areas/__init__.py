"""The areas of the stress tests: each module has `run(draw)`, which returns "right" or "refused", or raises."""
