"""Implement a node: its own data, the queries that it answers, and the values that it keeps.

A node answers with the embedded engine, and trusts nothing that a server sends.
"""
