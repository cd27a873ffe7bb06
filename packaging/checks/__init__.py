"""Checks of packaging/check.py, one module per kind of file."""
