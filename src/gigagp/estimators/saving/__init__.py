"""Fitted estimators as files, and settings as JSON."""
