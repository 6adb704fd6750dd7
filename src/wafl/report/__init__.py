"""Render a page from plain data as one self-contained HTML file, and draw figures from arrays.

This folder only draws; ``wafl.studies.pages`` gathers the content of a page.
"""
