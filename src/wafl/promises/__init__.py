"""Certificates as files: issued, read, checked, signed, put in words; and audits of sites against them.

What a file says is a promise: whatever changes here needs a test that tries to break it.
"""
