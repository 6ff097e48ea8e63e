"""Stress tests of gigagp: hostile tables, arguments, files, signals and failing disks, each case checked by an oracle.

``python -m stress --seconds 120`` runs every area and prints one table; see docs/reliability.md.

Cases are not drawn by Hypothesis. It shrinks what it can run again in its own process, whereas cases here may hang, be
killed or exhaust memory, are repeated from area, seed and number, and are small as drawn; it would replace 60 lines.
"""
