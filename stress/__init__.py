"""Stress tests of gigagp: hostile tables, arguments, files, signals and failing disks, each case checked by an oracle.

``python -m stress --seconds 120`` runs every area and prints one table; see docs/reliability.md.
"""
