"""Training by several processes at once: ranks that share out the work of a step and take the same step together.

``torch.distributed`` is loaded when ranks are joined, never before: a run of one process does not know it.
"""
