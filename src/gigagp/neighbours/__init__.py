"""Vecchia approximations: every row is conditioned on its nearest earlier rows, and all else follows from that."""
