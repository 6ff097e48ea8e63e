"""The areas: each module has `run(draw)`, which returns "right" or "refused", or raises."""
