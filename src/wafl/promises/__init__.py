"""Issue, read, check, sign and explain certificates as files, and audit sites against them.

A certificate file is a promise: every change here needs a test that tries to break it.
"""
