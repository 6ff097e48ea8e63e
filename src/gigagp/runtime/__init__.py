"""The job that a computation is part of: interruption and time, memory, processes, the machine's speed, progress.

Nothing here computes anything of a model. Code asks here how much it may use, and reports here how far it is.
"""
