"""Presents a diagnosis in words, tables and charts."""
