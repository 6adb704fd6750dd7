"""A node's side: its own data, what it may be asked, and what it keeps.

A node answers with the embedded engine; nothing that a server sends is trusted.
"""
