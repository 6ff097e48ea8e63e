"""Preconditioners of the systems on the nodes of a grid."""
