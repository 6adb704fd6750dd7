"""Implement a node: its own data, the queries it answers, and the values it keeps.

A node answers with the embedded engine, and trusts nothing from a server.
"""
