"""Random tables, containers, files and settings."""
